"""Layers of a model, in the order a token meets them, the decode cache, and taps."""

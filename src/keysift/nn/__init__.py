"""Modules in the order a token meets them: embedding, projection, rotary, scalars, store, read, tile, attention."""

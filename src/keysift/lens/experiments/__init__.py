"""Runs of the model with changed attention or changed input, and the effect on weights, outputs and loss."""

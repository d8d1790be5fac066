"""Backends in plain torch: dense (the definition), blockwise, rows and sdpa."""

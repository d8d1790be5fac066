"""Experiments and their records. Records are plain data, free of torch, so pages and scripts can read them anywhere."""

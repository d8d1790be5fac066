"""Benchmarks. Each has `Sizes`, FULL, QUICK and `measure`. Reading order: timing, collector, then one file each."""

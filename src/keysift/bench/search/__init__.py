"""Benchmark of exact search (docs/search.md)."""

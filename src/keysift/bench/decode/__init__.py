"""Benchmark of decoding: a Llama against transformers, and a Multiscreen on a long text."""

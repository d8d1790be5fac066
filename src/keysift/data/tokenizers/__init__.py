"""Tokenizers: UTF-8 bytes, BPE files, the symbols of generated tasks; how they are saved and loaded."""

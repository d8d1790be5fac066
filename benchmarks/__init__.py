"""Timings, as JSON. Each benchmark checks what it times before it prints a figure."""

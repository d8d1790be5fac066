"""The only place that knows `transformers` (extra [hub]). Importing this package does not load it."""

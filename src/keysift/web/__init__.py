"""Self-contained pages and figures made from records. Nothing here loads a model or needs a network."""

"""Self-contained pages made from records. Nothing here loads a model or needs a network."""

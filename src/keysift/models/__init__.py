"""Language models: Multiscreen and Transformer, presets, saving, loading, import and text generation."""

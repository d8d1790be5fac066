"""The run directory. All modules but machine are free of torch."""

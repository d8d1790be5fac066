"""The run directory. All modules but directory and machine are free of torch."""

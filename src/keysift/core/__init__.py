"""What every layer stands on, and what knows nothing of attention: errors, shapes, configs, registries."""

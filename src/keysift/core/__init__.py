"""Foundations of all layers, without attention or torch: errors, configs, registries, atomic files, terminal text."""

"""Playground page: attention mechanisms computed in the browser and checked against Python."""

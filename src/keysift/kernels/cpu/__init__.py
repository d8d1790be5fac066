"""Compiled CPU backends: the library, code shared by its operators, and one module per kernel."""

"""Text on the terminal: tables, JSON, progress and charts."""

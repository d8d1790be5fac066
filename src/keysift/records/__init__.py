"""Records that are written to disk or read by pages: one schema each, without torch."""

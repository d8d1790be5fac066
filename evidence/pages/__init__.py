"""Pages, tables and figures written from records."""

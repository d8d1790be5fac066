"""Reports of training runs: the report of a few runs in depth, and the page of a sweep."""

"""One home for measuring: contestants take turns in one process, ratios are taken turn by turn, and every record names
the machine. Nothing is timed that disagrees with the definition. Records are plain data, free of torch."""

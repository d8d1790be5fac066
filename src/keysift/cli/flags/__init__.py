"""Flags that verbs share, and the command line that reproduces a call."""

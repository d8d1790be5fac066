"""Findings: statements about a record, each with its heads, tokens or next step. No torch."""

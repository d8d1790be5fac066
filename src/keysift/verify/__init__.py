"""Verification of mechanisms and backends: promises, gradients, agreement of backends, equality of cached decoding.

Also here: reference values by the dense definition, for the demo (`competitors`) and for the playground's JavaScript
(`playground_reference`), which is one more implementation of the mechanisms.
"""

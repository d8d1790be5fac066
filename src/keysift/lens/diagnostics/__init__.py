"""Numbers computed from the attention of one layer, or from a finished record, without changing the model.

Each row diagnostic takes a `Block` of queries and returns H x T numbers by name.
"""

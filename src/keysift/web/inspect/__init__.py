"""Page of an inspection: every attention head of a model, one query at a time, and the experiments on it."""

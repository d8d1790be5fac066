"""How good is a model? Loss, loss by position, retrieval and windows, each measured by one function into one record."""

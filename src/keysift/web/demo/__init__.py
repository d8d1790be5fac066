"""Page of the text demo: the context experiment and a short training run."""

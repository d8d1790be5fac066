"""The verbs: one module each, with `Args` (its flags and their help) and `run(args)`."""

"""`keysift eval`: flags, calls and output of its measurements."""

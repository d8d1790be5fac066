"""The two demonstrations of `keysift demo`."""

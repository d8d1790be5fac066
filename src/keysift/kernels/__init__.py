"""The same mathematics, run: `attend` is the one door, and every backend behind it agrees with mechanisms/."""

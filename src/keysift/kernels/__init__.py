"""Fast attention: `attend` is the single entry point, and every backend agrees with the definitions in mechanisms/."""

"""Claims and the rules that decide them."""

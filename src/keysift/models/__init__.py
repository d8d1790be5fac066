"""Language models: only what differs between them. nn/ holds what they share."""

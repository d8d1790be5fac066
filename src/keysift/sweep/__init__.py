"""Several runs, and what they say together. Reading order: plan, drive, child; then study, records, measure, carry."""

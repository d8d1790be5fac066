"""Several runs, and what they say together. Reading order: plan, drive, child; then outline, study, records, measure,
carry; then groups, claims, pages, repeats."""

"""The reproduction of the paper: one folder per study, and the code that runs studies and writes their pages.

A folder holds study.toml (runs, measurements and claims), records.jsonl (one line per finished run), repeats.jsonl
(runs that were trained a second time) and, written from these, README.md and figure.svg. From the repository root:

    python -m evidence run one-hop           train, evaluate and record the runs that have no record yet
    python -m evidence repeat one-hop NAME   train a recorded run again and compare
    python -m evidence pages                 write every page and figure, and the table of claims in README.md

Reading order: study, runs, run_study, measures, records; then groups, paired, rules, latency; then pages, tables,
figures, repeats. lens_claims, lens_compare and lens_excerpt serve the pages about pretrained models.
"""

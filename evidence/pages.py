"""The page of each study and the table of all claims, written from the records. No model is loaded."""

from collections.abc import Sequence
from pathlib import Path

from evidence import headline
from evidence.figures import draw
from evidence.groups import group_by_seed
from evidence.latency import STATEMENT, faster_at_longest, latency_tables, read_benchmark
from evidence.records import RunRecord, read_records
from evidence.repeats import Repeat
from evidence.rules import RULES, Verdict
from evidence.study import ROOT, Study, find_studies
from evidence.tables import measurement_tables
from keysift.core.markdown import table_head, table_row

INTRODUCTION = """# What we found

Claims about screening, tested at the scale of one machine. The rule that decides a claim is on the page of its study.

- *Reproduced*: the difference has the claimed sign and passes the rule.
- *Not reproduced*: it passes the rule with the opposite sign, or the claimed effect did not occur.
- *Undecided*: neither.

A positive effect supports the claim. Intervals are 95% intervals over seeds; for times they are quartiles over rounds.
n is the number of seeds per model, the smaller one if they differ. Most rules test at the 5% level, so expect one or
two of these claims to pass by chance.
"""

AFTER_TABLE = """
Pages about pretrained models: [published claims about attention](lens/README.md),
[a Transformer and a Multiscreen side by side](lens-side-by-side/README.md) and
[other mechanisms in pretrained weights](retrofit/README.md).

## Run a study

```sh
python -m evidence run one-hop           # train, evaluate and record the runs that have no record yet
python -m evidence repeat one-hop RUN    # train a recorded run again and compare the results
python -m evidence pages                 # write this table and the pages it links to
```

The folder of a study holds `study.toml` (runs, measurements, claims and their rules), `records.jsonl` (one line per
finished run: settings, seed, commit, machine, curves and measurements), `repeats.jsonl` (runs trained a second time),
and the page and figure written from them. A recorded run is not trained again, so a study resumes from its records
alone, even on another machine. `make evidence` completes all studies.
"""


def render(root: Path = ROOT) -> dict[str, str]:
    """Text of every generated file below a folder of studies, by relative path."""
    studies = find_studies(root)
    files = {"headline.svg": headline.figure(), "README.md": f"{INTRODUCTION}\n{table(studies)}{AFTER_TABLE}"}
    for study in studies:
        files |= {f"{study.name}/{name}": text for name, text in render_study(study).items()}
    return files


def table(studies: Sequence[Study]) -> str:
    """The claims of all studies: effect, interval, n and verdict."""
    lines = table_head("claim", "effect", "n", "verdict", "study")
    for study in studies:
        link = f"[{study.page.title}]({study.name}/README.md)"
        lines += [table_row(v.claim, v.effect, v.n, f"**{v.word}**", link) for v in verdicts(study)]
    return "\n".join(lines) + "\n"


def verdicts(study: Study) -> list[Verdict]:
    if study.plan is None:
        bench = read_benchmark(ROOT.parent / study.page.benchmark)
        return [faster_at_longest(claim, bench) for claim in study.claims]
    groups = group_by_seed(read_records(study.records).values())
    return [RULES[claim.rule].decide(claim, groups) for claim in study.claims]


def render_study(study: Study) -> dict[str, str]:
    """README.md, and figure.svg if there is something to draw."""
    lines = [f"# {study.page.title}", ""]
    lines += [f"- **{verdict.claim}: {verdict.word}** ({verdict.why})" for verdict in verdicts(study)]
    statements = dict.fromkeys(STATEMENT if study.plan is None else RULES[c.rule].statement for c in study.claims)
    rule = " ".join([*statements, *([study.page.note] if study.page.note else [])])
    lines += ["", f"Rule: {rule}", "", f"Left for a larger study: {study.page.larger}", ""]
    if study.plan is None:
        bench = read_benchmark(ROOT.parent / study.page.benchmark)
        lines += latency_tables(study, bench) if bench else []
        return {"README.md": _with_command(lines, bench.command if bench else "keysift bench models")}
    records = read_records(study.records)
    groups = group_by_seed(records.values())
    figure = draw(study.page.figure, groups) if study.page.figure else None
    lines += [f"![{study.page.title}](figure.svg)", ""] if figure else []
    if records:
        lines += [*measurement_tables(study, groups), "", _provenance(list(records.values()), study.plan.runs), ""]
    lines += [f"Repeated run: {repeat}.\n" for repeat in _repeats(study, records)]
    files = {"README.md": _with_command(lines, f"python -m evidence run {study.name}")}
    return files | ({"figure.svg": figure} if figure else {})


def _with_command(lines: list[str], command: str) -> str:
    return "\n".join([*lines, "```sh", command, "```"]) + "\n"


def _repeats(study: Study, records: dict[str, RunRecord]) -> list[Repeat]:
    """Repeats of recorded runs. Repeats with other settings than the record are left out."""
    repeats = read_records(study.repeats).values()
    same = [run for run in repeats if run.name in records and run.overrides == records[run.name].overrides]
    return [Repeat(run, list(records.values())) for run in same]


def _provenance(records: Sequence[RunRecord], planned: int) -> str:
    sessions = [session for record in records for session in record.sessions]
    cpus, commits = ({session[name] for session in sessions} for name in ("cpu", "commit"))
    minutes = sum(record.seconds for record in records) / 60
    days = sorted(session["began"][:10] for session in sessions)
    dates = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return (
        f"{len(records)} of {planned} runs, {minutes:.0f} minutes of training in total ({dates}; "
        f"{', '.join(sorted(cpus))}, one thread; {len(commits)} commit{'s' * (len(commits) > 1)}). Each line of "
        f"records.jsonl has the commit, seed, settings, data hash and curves of a run. Other programs used the machine "
        f"at the same time, so the times are not a benchmark."
    )

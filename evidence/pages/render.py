"""The page of each study and the table of all claims, written from the records. No model is loaded."""

from collections.abc import Sequence
from pathlib import Path

from evidence.claims.groups import group_by_seed
from evidence.claims.latency import STATEMENT, faster_at_longest, latency_tables, read_benchmark
from evidence.claims.progress import unless_unfinished
from evidence.claims.rules import RULES, corrected
from evidence.claims.verdict import Verdict
from evidence.pages import books, forest, headline, settled, tiles
from evidence.pages.figures import draw
from evidence.pages.tables import measurement_tables
from evidence.records import RunRecord, read_records
from evidence.repeats import Repeat
from evidence.runs import plan_of
from evidence.study import ROOT, Study, find_studies
from keysift.core.markdown import table_head, table_row

INTRODUCTION = """# What we found

Claims about screening, tested at the scale of one machine. The rule that decides a claim is on the page of its study.
Models of a study share their data order seed by seed, so every test is paired.

- *Supported*, *contradicted*: the difference has the claimed or the opposite sign, and the test rejects equality.
- *Equivalent within the margin*: the 90% interval lies within the margin of the claim.
- *Underpowered*: neither. *n needed* is the number of seeds for a power of 80% at the margin or the observed effect.
- *Task not learned by either*: both models fail at their training length, so the comparison says nothing.
- *Unfinished*: the planned seeds have not all run. The effect so far is shown and decides nothing.

A positive effect supports the claim. Intervals are 95% intervals over seeds; for times they are quartiles over rounds.
n is the number of seeds that both models have. Primary claims are corrected for their number by Holm's method. All
other claims are exploratory: each is tested at the 5% level, so expect one in twenty to pass by chance. The figure
shows every primary claim, and the first claim of every other study, that has records.
"""

FOREST = "forest.svg"
AFTER_TABLE = """
[What tiles learn](tiles/README.md): window against acceptance over all trained tiles.
Pages about pretrained models: [published claims about attention](lens/README.md),
[a Transformer and a Multiscreen side by side](lens-side-by-side/README.md) and
[other mechanisms in pretrained weights](retrofit/README.md).
[Text models trained on books](books/README.md) are shipped in `checkpoints/`.

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
    decided = decide(studies)
    plot = forest.draw(forest.rows(studies, decided))
    figures = f"\n![Effect and 95% interval of each question]({FOREST})\n" if plot else ""
    text = f"{INTRODUCTION}{figures}\n{table(studies)}{settled.section()}{AFTER_TABLE}"
    files = {"headline.svg": headline.figure(), "README.md": text} | ({FOREST: plot} if plot else {})
    files |= tiles.render(root) | books.render(root)
    for study in studies:
        files |= {f"{study.name}/{name}": text for name, text in render_study(study, decided[study.name]).items()}
    return files


def table(studies: Sequence[Study]) -> str:
    """The claims of all studies, primary ones first: effect, interval, n and verdict."""
    decided, titles = decide(studies), {study.name: study.page.title for study in studies}
    text = ""
    for primary, title in ((True, "Primary claims"), (False, "Exploratory claims")):
        lines = [f"## {title}", "", *table_head("claim", "effect", "n", "verdict", "study")]
        for name, verdicts in decided.items():
            link = f"[{titles[name]}]({name}/README.md)"
            lines += [
                table_row(verdict.claim.text, verdict.effect, verdict.n, f"**{verdict.text}**", link)
                for verdict in verdicts
                if verdict.claim.primary == primary
            ]
        text += "\n".join(lines) + "\n\n"
    return text


def decide(studies: Sequence[Study]) -> dict[str, list[Verdict]]:
    """Verdicts by the name of the study, with the primary claims of all studies corrected together."""
    decided = [(study.name, verdict) for study in studies for verdict in verdicts(study)]
    results: dict[str, list[Verdict]] = {study.name: [] for study in studies}
    for (name, _), verdict in zip(decided, corrected([verdict for _, verdict in decided]), strict=True):
        results[name].append(verdict)
    return results


def verdicts(study: Study) -> list[Verdict]:
    """Verdicts of one study, without correction."""
    if study.plan is None:
        bench = read_benchmark(ROOT.parent / study.page.benchmark)
        return [faster_at_longest(claim, bench) for claim in study.claims]
    records = read_records(study.records)
    groups = group_by_seed(record for record in records.values() if record.seed in study.plan.seeds)
    return [unless_unfinished(RULES[claim.rule].decide(claim, groups), study, records) for claim in study.claims]


def render_study(study: Study, decided: Sequence[Verdict]) -> dict[str, str]:
    """README.md with the verdicts, and figure.svg if there is something to draw."""
    lines = [f"# {study.page.title}", ""]
    lines += [f"- **{verdict.claim.text}: {verdict.text}** ({verdict.why})" for verdict in decided]
    statements = dict.fromkeys(STATEMENT if study.plan is None else RULES[c.rule].statement for c in study.claims)
    rule = " ".join([*statements, *([study.page.note] if study.page.note else [])])
    lines += ["", f"Rule: {rule}", "", f"Left for a larger study: {study.page.larger}", ""]
    if study.plan is None:
        bench = read_benchmark(ROOT.parent / study.page.benchmark)
        lines += latency_tables(study, bench) if bench else []
        return {"README.md": _with_command(lines, bench.command if bench else "keysift bench models")}
    records = read_records(study.records)
    groups = group_by_seed(record for record in records.values() if record.seed in study.plan.seeds)
    figure = draw(study.page.figure, groups) if study.page.figure else None
    lines += [f"![{study.page.title}](figure.svg)", ""] if figure else []
    if records:
        lines += [*measurement_tables(study, groups), "", _provenance(study, list(records.values())), ""]
    lines += [f"Determinism, one run trained a second time: {repeat}.\n" for repeat in _repeats(study, records)]
    files = {"README.md": _with_command(lines, f"python -m evidence run {study.name}")}
    return files | ({"figure.svg": figure} if figure else {})


def _with_command(lines: list[str], command: str) -> str:
    return "\n".join([*lines, "```sh", command, "```"]) + "\n"


def _repeats(study: Study, records: dict[str, RunRecord]) -> list[Repeat]:
    """Repeats of recorded runs. Repeats with other settings than the record are left out."""
    repeats = read_records(study.repeats).values()
    same = [run for run in repeats if run.name in records and run.overrides == records[run.name].overrides]
    return [Repeat(run, list(records.values())) for run in same]


def _provenance(study: Study, records: Sequence[RunRecord]) -> str:
    sessions = [session for record in records for session in record.sessions]
    cpus, commits = ({session[name] for session in sessions} for name in ("cpu", "commit"))
    minutes = sum(record.seconds for record in records) / 60
    first = min(sessions, key=lambda session: str(session["began"]))
    days = sorted(session["began"][:10] for session in sessions)
    dates = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    began = first["commit"][:10]
    return (
        f"{len(records)} of {plan_of(study).runs} runs, {minutes:.0f} minutes of training in total ({dates}; "
        f"{', '.join(sorted(cpus))}, one thread; {len(commits)} commit{'s' * (len(commits) > 1)}). The first run began "
        f"at commit {began}; `git diff {began} -- evidence/{study.name}/study.toml` shows what changed in the recipe "
        f"and the rules since. Each line of records.jsonl has the commit, seed, settings, data hash and curves of a "
        f"run. Other programs used the machine at the same time, so the times are not a benchmark."
    )

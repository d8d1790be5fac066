"""Pages of docs/results from the records of studies: verdicts, a figure, tables, the command. Never loads a model."""

from collections.abc import Sequence
from pathlib import Path

from keysift.sweep.claims import Verdict
from keysift.sweep.groups import groups
from keysift.sweep.outline import read_plan
from keysift.sweep.pages import PAGES, Page
from keysift.sweep.records import Record, read_records
from keysift.sweep.repeats import AGAIN, Repeat
from keysift.web.evidence_figures import figure
from keysift.web.evidence_tables import head, row, tables
from keysift.web.latency_page import KEY as LATENCY
from keysift.web.latency_page import TITLE, latency_page, latency_verdicts, read_latency


def rendered(results: Path, recipes: Path) -> dict[str, str]:
    """Files by name: pages and figures of the records in `results`/evidence, and of its models.json."""
    kept, bench = results / "evidence", read_latency(results / "models.json")
    files = {f"{LATENCY}.md": latency_page(bench)}
    lines = [
        "# What we found",
        "",
        "Claims about screening, checked at the scale of one machine. Verdicts follow from the records by the rule "
        "that each page states. *Reproduced*: the difference has the claimed sign and passes the rule. *Not "
        "reproduced*: it passes the rule with the opposite sign, or what was claimed did not happen. *Undecided*: "
        "neither. The rule of most pages is a test at the 5% level, so among this many claims expect one or two to "
        "pass by chance. `make docs` writes all of this.",
        "",
        *head("claim", "verdict", "page and figure", "command"),
    ]
    entries: dict[str, list[str]] = {
        LATENCY: [
            row(verdict.claim, verdict.word, f"[{TITLE}]({LATENCY}.md)", "`keysift bench models`")
            for verdict in latency_verdicts(bench)
        ]
    }
    for one in PAGES:
        known = read_records(kept / f"{one.study}.jsonl")
        records = list(known.values())
        # A second run of what the study has since been changed to is no second run.
        seconds = read_records(kept / AGAIN / f"{one.study}.jsonl").values()
        again = [two for two in seconds if two.name in known and two.asked == known[two.name].asked]
        planned = read_plan(recipes / f"{one.study}.toml").runs
        found = groups(records)
        verdicts, drawing = one.decide(found), figure(one, found)
        if drawing is not None:
            files[f"{one.key}.svg"] = drawing
        about = [*tables(one, found), "", _provenance(records, planned), ""] if records else []
        repeats = [Repeat(two, records) for two in again]
        files[f"{one.key}.md"] = page(one, verdicts, about, repeats, drawn=drawing is not None)
        entries[one.key] = [
            row(verdict.claim, verdict.word, f"[{one.title}]({one.key}.md)", f"`{command(one)}`")
            for verdict in verdicts
        ]
    lines += [entry for key in sorted(entries, key=_number) for entry in entries[key]]
    return {"README.md": "\n".join(lines) + "\n", **files}


def _number(key: str) -> str:
    """e2 of e2-one-hop."""
    return key.partition("-")[0]


def command(one: Page) -> str:
    return (
        f"keysift sweep --study recipes/evidence/{one.study}.toml --out sweeps/{one.study} "
        f"--records docs/results/evidence/{one.study}.jsonl"
    )


def page(one: Page, verdicts: Sequence[Verdict], about: list[str], again: Sequence[Repeat], *, drawn: bool) -> str:
    lines = [f"# {one.title}", ""]
    lines += [f"- **{verdict.claim}: {verdict.word}** ({verdict.why})" for verdict in verdicts]
    lines += ["", f"Rule: {one.rule}. A larger run would have to show {one.larger}.", ""]
    lines += [f"![{one.title}]({one.key}.svg)", ""] if drawn else []
    lines += about
    lines += [f"Made a second time: {repeat}.\n" for repeat in again]
    lines += ["```sh", command(one), "```"]
    return "\n".join(lines) + "\n"


def _provenance(records: Sequence[Record], planned: int) -> str:
    sessions = [session for one in records for session in one.sessions]
    cpus, commits = ({session[name] for session in sessions} for name in ("cpu", "commit"))
    minutes = sum(one.seconds for one in records) / 60
    days = sorted(session["began"][:10] for session in sessions)
    return (
        f"{len(records)} of {planned} runs, {minutes:.0f} minutes of training in all, {days[0]} to {days[-1]}, on "
        f"{', '.join(sorted(cpus))}, one thread, {len(commits)} commit{'s' * (len(commits) > 1)}; every record says "
        f"which, with its seed, settings, stream hash and curves. The machine was busy with other work, so times are "
        f"no benchmark."
    )

"""Pages of docs/results from the records of studies: verdicts, a figure, a table, the command. Never loads a model."""

from collections.abc import Callable, Sequence
from pathlib import Path

from keysift.sweep.claims import PAGES, Page
from keysift.sweep.groups import Group, Sample, at_best, groups
from keysift.sweep.records import Record, read_records
from keysift.web.chart import Axis, Line, as_file, chart

RATIOS = (1, 2, 4, 8, 16, 32, 64)
POSITIONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SETTINGS = ("as trained", "windows expanded", "RoPE scaled")


def rendered(kept: Path) -> dict[str, str]:
    """Files by name."""
    files = {"README.md": index(kept)}
    for one in PAGES:
        records = list(read_records(kept / f"{one.study}.jsonl").values())
        if records:
            files[f"{one.key}.svg"] = figure(one, groups(records))
        files[f"{one.key}.md"] = page(one, records)
    return files


def index(kept: Path) -> str:
    lines = [
        "# What we found",
        "",
        "Claims about screening, checked at the scale of one machine. Verdicts follow from the records by the rule "
        "that each page states; all of this is written by `make docs`.",
        "",
        "| claim | verdict | page and figure | command |",
        "|---|---|---|---|",
    ]
    for one in PAGES:
        found = groups(read_records(kept / f"{one.study}.jsonl").values())
        lines += [
            f"| {verdict.claim} | {verdict.word} | [{one.key}]({one.key}.md) | `{command(one)}` |"
            for verdict in one.decide(found)
        ]
    return "\n".join(lines) + "\n"


def command(one: Page) -> str:
    return (
        f"keysift sweep --study recipes/evidence/{one.study}.toml --out sweeps/{one.study} "
        f"--records docs/results/evidence/{one.study}.jsonl"
    )


def page(one: Page, records: Sequence[Record]) -> str:
    found = groups(records)
    lines = [f"# {one.title}", ""]
    lines += [f"- **{verdict.claim}: {verdict.word}** ({verdict.why})" for verdict in one.decide(found)]
    lines += ["", f"Decided so: {one.rule}. A larger run would have to show {one.larger}.", ""]
    if records:
        lines += [f"![{one.title}]({one.key}.svg)", "", *_table(one, found), "", _provenance(records), ""]
    lines += ["```sh", command(one), "```"]
    return "\n".join(lines) + "\n"


def figure(one: Page, found: Sequence[Group]) -> str:
    draw: dict[str, Callable[[Sequence[Group]], str]] = {
        "lengths": _lengths,
        "rates": _rates,
        "bars": _rates,
        "sizes": _sizes,
        "positions": _positions,
    }
    return as_file(draw[one.figure](found))


def _lengths(found: Sequence[Group]) -> str:
    lines = []
    for one in at_best(found):
        for setting in SETTINGS:
            points = [(float(ratio), sample.mean) for ratio in RATIOS if (sample := one.retrieved(ratio, setting))]
            lines += [Line(f"{one.label}, {setting}", points)] if points else []
    x = Axis("length, as a multiple of the training length", log=True, marks=RATIOS, show=lambda v: f"{v:g}x")
    return chart("accuracy by length", lines, x=x, y=Axis("share of answers that are right"))


def _positions(found: Sequence[Group]) -> str:
    lines = []
    for one in at_best(found):
        for setting in SETTINGS:
            points = [(ratio, sample.mean) for ratio in POSITIONS if (sample := one.at_position(ratio, setting))]
            lines += [Line(f"{one.label}, {setting}", points)] if points else []
    x = Axis("tokens before the predicted one, in training lengths", log=True, marks=POSITIONS)
    return chart("loss by position", lines, x=x, y=Axis("nats"))


def _rates(found: Sequence[Group]) -> str:
    """Loss by rate; a rate at which every run diverged has no point."""
    labels = dict.fromkeys(one.label for one in found)
    lines = []
    for name in labels:
        own = sorted((one for one in found if one.label == name and one.losses), key=lambda one: one.rate)
        lines.append(Line(name, [(one.rate, one.losses.mean) for one in own if one.losses]))
    return chart("loss by learning rate", lines, x=Axis("learning rate", log=True), y=Axis("validation loss, nats"))


def _sizes(found: Sequence[Group]) -> str:
    best = sorted(at_best(found), key=lambda one: one.parameters)
    labels = dict.fromkeys(one.label for one in best)
    lines = [
        Line(name, [(float(one.parameters), one.losses.mean) for one in best if one.label == name and one.losses])
        for name in labels
    ]
    return chart("loss by parameters", lines, x=Axis("parameters", log=True), y=Axis("validation loss, nats"))


def _table(one: Page, found: Sequence[Group]) -> list[str]:
    if one.figure == "lengths":
        lines = [
            "At its best rate, mean and standard deviation over seeds of the share of needles found. The rows are the "
            "same at every depth and for every seed, eight at each length, so the spread leaves out that of the rows:",
            "",
        ]
        heads = [f"{ratio}x" for ratio in RATIOS]
        lines += _head("model", "setting", "parameters", "rate", "seeds", *heads)
        for group in at_best(found):
            for setting in SETTINGS:
                samples = [group.retrieved(ratio, setting) for ratio in RATIOS]
                if any(samples):
                    cells = [_cell(sample, "{:.0%}") for sample in samples]
                    lines.append(_row(group.label, setting, *_facts(group), *cells))
        lines += ["", "Every rate:", ""]
    elif one.figure == "positions":
        lines = ["At its best rate, nats with so many training lengths before, mean and standard deviation:", ""]
        lines += _head("model", "setting", "parameters", "rate", "seeds", *(f"{ratio:g}x" for ratio in POSITIONS))
        for group in at_best(found):
            for setting in SETTINGS:
                samples = [group.at_position(ratio, setting) for ratio in POSITIONS]
                if any(samples):
                    cells = [_cell(sample, "{:.3f}") for sample in samples]
                    lines.append(_row(group.label, setting, *_facts(group), *cells))
        lines += ["", "Every rate:", ""]
    else:
        lines = ["Mean and standard deviation over seeds:", ""]
    answers = any(group.accuracies for group in found)
    lines += _head("model", "parameters", "rate", "seeds", "diverged", "loss", *(["accuracy"] if answers else []))
    for group in sorted(found, key=lambda group: (group.label, group.parameters, group.rate)):
        parameters, rate, _ = _facts(group)
        cells = [_cell(group.losses, "{:.4f}"), *([_cell(group.accuracies, "{:.1%}")] if answers else [])]
        lines.append(_row(group.label, parameters, rate, str(len(group.records)), str(group.diverged), *cells))
    return lines


def _facts(group: Group) -> tuple[str, str, str]:
    return f"{group.parameters:,}", f"{group.rate:g}", str(len(group.records))


def _cell(sample: Sample | None, shape: str) -> str:
    if sample is None:
        return ""
    spread = "" if sample.spread is None else f" ± {shape.format(sample.spread)}"
    return shape.format(sample.mean) + spread


def _head(*titles: str) -> list[str]:
    return [_row(*titles), "|" + "---|" * len(titles)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _provenance(records: Sequence[Record]) -> str:
    sessions = [session for one in records for session in one.sessions]
    cpus, commits = ({session[name] for session in sessions} for name in ("cpu", "commit"))
    minutes = sum(one.seconds for one in records) / 60
    days = sorted(session["began"][:10] for session in sessions)
    return (
        f"{len(records)} runs, {minutes:.0f} minutes of training in all, {days[0]} to {days[-1]}, on "
        f"{', '.join(sorted(cpus))}, one thread, {len(commits)} commit{'s' * (len(commits) > 1)}; every record says "
        f"which, with its seed, settings, stream hash and curves. The machine was busy with other work, so times are "
        f"no benchmark."
    )

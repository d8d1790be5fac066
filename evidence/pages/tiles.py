"""What tiles learn: the window of every trained tile against its acceptance, from the records of all studies.

Runs of studies that measured windows, and evidence/tiles/*.json, records of `keysift eval windows` on checkpoints.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from evidence.claims.groups import label
from evidence.records import RunRecord, read_records
from evidence.study import ROOT, find_studies
from keysift.core.config import load
from keysift.core.markdown import table_head, table_row
from keysift.records.evaluation import Windows
from keysift.web.shared.chart import Axis, Line, chart, svg_file

FOLDER = "tiles"
BANDS = ((0.0, 64.0, "below 64"), (64.0, 1024.0, "64 to 1,024"), (1024.0, float("inf"), "from 1,024"))
INTRODUCTION = """# What tiles learn: window against acceptance

Every tile of a Multiscreen learns a window w and an acceptance r: of the keys in its window, it accepts those whose
cosine with the query exceeds 1 - r. A tile that looks far can stay strict (few keys, small r) or accept nearly
everything. Points are the tiles of all trained models whose windows were recorded; all seeds are drawn. The second
figure shows how many keys a query accepts on held-out text, where that was recorded.
"""


@dataclass(frozen=True)
class Tile:
    window: float
    acceptance: float
    accepted: float | None
    """Accepted keys per query; None if they were not counted."""


@dataclass(frozen=True)
class TiledRun:
    """The tiles of one trained model. Runs with the same group differ by their seed only."""

    group: str
    tokens: int | None
    """Training tokens."""
    tiles: tuple[Tile, ...]

    @property
    def correlation(self) -> float:
        """Rank correlation of window and acceptance over the tiles."""
        pairs = [(tile.window, tile.acceptance) for tile in self.tiles]
        return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


def render(root: Path = ROOT) -> dict[str, str]:
    """The page and its figures, relative to the folder of studies; empty if no run has recorded its windows."""
    groups: dict[str, list[TiledRun]] = {}
    for run in find_runs(root):
        groups.setdefault(run.group, []).append(run)
    if not groups:
        return {}
    figures = {"figure.svg": _acceptances(groups), "accepted.svg": _accepted(groups)}
    drawn = {name: drawing for name, drawing in figures.items() if drawing is not None}
    captions = {"figure.svg": "Acceptance by window", "accepted.svg": "Accepted keys per query by window"}
    pictures = "\n\n".join(f"![{captions[name]}]({name})" for name in drawn)
    lines = [f"{INTRODUCTION}\n{pictures}\n", _summary(groups), "", *_table(groups), "", *_footer()]
    return {f"{FOLDER}/{name}": text for name, text in {"README.md": "\n".join(lines) + "\n", **drawn}.items()}


def find_runs(root: Path) -> list[TiledRun]:
    runs = []
    for study in find_studies(root):
        for record in read_records(study.records).values():
            if record.finished and record.measures.get("windows"):
                runs.append(_of_record(study.name, record))
    for path in sorted((root / FOLDER).glob("*.json")):
        runs.append(_of_checkpoint(path.stem, load(Windows, path)))
    return runs


def _of_record(study: str, record: RunRecord) -> TiledRun:
    tiles = []
    for layer in record.measures["windows"]:
        counted = layer.get("accepted_keys") or [None] * len(layer["windows"])
        rows = zip(layer["windows"], layer["acceptances"], counted, strict=True)
        tiles += [Tile(window, acceptance, accepted) for window, acceptance, accepted in rows]
    return TiledRun(f"{study}: {label(record.settings)}, rate {record.settings['lr']:g}", record.tokens, tuple(tiles))


def _of_checkpoint(name: str, record: Windows) -> TiledRun:
    """Accepted keys per query follow from the share of visible pairs: query t of T sees t keys."""
    visible = (record.tokens + 1) / 2
    tiles = [
        Tile(head.window, head.acceptance, head.accepted * visible)
        for head in record.heads
        if head.window is not None and head.acceptance is not None
    ]
    return TiledRun(f"checkpoint {name}", None, tuple(tiles))


def _acceptances(groups: dict[str, list[TiledRun]]) -> str | None:
    lines = [
        _dots(name, [(t.window, t.acceptance) for run in runs for t in run.tiles]) for name, runs in groups.items()
    ]
    x = Axis("window, tokens", log=True)
    return svg_file(chart("acceptance by window", lines, x=x, y=Axis("acceptance r", include=(0.0, 1.0))))


def _accepted(groups: dict[str, list[TiledRun]]) -> str | None:
    """None where no run has counted accepted keys."""
    lines = [
        _dots(name, [(t.window, t.accepted) for run in runs for t in run.tiles if t.accepted is not None])
        for name, runs in groups.items()
    ]
    if not any(line.points for line in lines):
        return None
    x, y = Axis("window, tokens", log=True), Axis("accepted keys per query", include=(0.0,))
    return svg_file(chart("accepted keys by window", lines, x=x, y=y))


def _dots(name: str, points: Sequence[tuple[float, float]]) -> Line:
    return Line(name, list(points), joined=False)


def _summary(groups: dict[str, list[TiledRun]]) -> str:
    signs = [run.correlation < 0 for runs in groups.values() for run in runs]
    return (
        f"In {sum(signs)} of {len(signs)} models, tiles with longer windows have lower acceptances (negative rank "
        f"correlation). The table shows where: mean acceptance by window, and keys that a query accepts."
    )


def _table(groups: dict[str, list[TiledRun]]) -> list[str]:
    bands = [f"r, window {name}" for *_, name in BANDS] + [f"keys, {name}" for *_, name in BANDS]
    lines = table_head("models", "runs", "tiles", "tokens", "rank correlation", *bands)
    for name, runs in groups.items():
        tiles = [tile for run in runs for tile in run.tiles]
        found = sorted(run.correlation for run in runs)
        correlation = f"{statistics.mean(found):+.2f}" + (
            f" ({found[0]:+.2f} to {found[-1]:+.2f})" if found[1:] else ""
        )
        tokens = "" if runs[0].tokens is None else f"{runs[0].tokens / 1e6:.2g}M"
        cells = [_mean([t.acceptance for t in tiles if low <= t.window < high], "{:.2f}") for low, high, _ in BANDS]
        for low, high, _ in BANDS:
            counted = [t.accepted for t in tiles if low <= t.window < high and t.accepted is not None]
            cells.append(_mean(counted, "{:.1f}"))
        lines.append(table_row(name, str(len(runs)), str(len(tiles)), tokens, correlation, *cells))
    return lines


def _mean(values: Sequence[float], form: str) -> str:
    return f"{form.format(statistics.mean(values))} ({len(values)})" if values else ""


def _footer() -> list[str]:
    return [
        "Rank correlations: mean, lowest and highest over the runs. The number of tiles is in parentheses. A window",
        "may exceed the training length: nothing in training bounds it. Studies write their windows into",
        "`records.jsonl`; those of a checkpoint are from `keysift eval windows CHECKPOINT --text FILE --json`.",
        "",
        "```sh",
        "python -m evidence pages",
        "```",
    ]

"""The first screen of the README: a figure of one result, and some numbers with their sources."""

from collections.abc import Sequence

from evidence.claims.groups import SeedGroup, find_best, group_by_seed
from evidence.records import read_records
from evidence.study import POSITIONS, ROOT
from keysift.core import safe_json
from keysift.core.config import from_dict, load
from keysift.core.statistics import Sample
from keysift.records.bench import Result
from keysift.records.evaluation import AS_TRAINED, ROPE_SCALED, WINDOWS_EXPANDED
from keysift.records.exactness import Exactness
from keysift.records.long_recall import LongRecall
from keysift.web.shared.chart import Axis, Line, chart, svg_file

RESULTS = ROOT.parent / "docs" / "results"
LENGTH = 16  # multiple of the training length at which recall is quoted


def headline() -> str:
    """Numbers as a Markdown list: speed, recall beyond the training length, a needle in a long text, exactness."""
    return "\n".join((_speed(), _recall(), _needle(), _exactness()))


def figure() -> str:
    """Loss by position of both models, and of the Transformer with the best RoPE factor at each position."""
    groups = _groups("positions")
    ours, theirs = _best(groups, "Multiscreen"), _best(groups, "Transformer")
    contexts = [context for context in POSITIONS if context >= 1]
    lines = [
        _line("Multiscreen", {context: ours.loss_at(context, AS_TRAINED) for context in contexts}),
        _line("Transformer", {context: theirs.loss_at(context, AS_TRAINED) for context in contexts}),
        _line(
            "Transformer, best RoPE scaling at each length",
            {context: _lower(theirs, context) for context in contexts},
        ),
    ]
    x = Axis("context, in training lengths", log=True, ticks=contexts, format=lambda value: f"{value:g}x")
    return svg_file(chart("loss by position", lines, x=x, y=Axis("loss, nats per byte", include=(1.0,))))


def _lower(group: SeedGroup, context: float) -> Sample | None:
    """The lowest mean loss over RoPE factors and the model as trained."""
    samples = (group.loss_at(context, AS_TRAINED), group.loss_at_best_rope(context))
    return min((losses for losses in samples if losses is not None), key=lambda losses: losses.mean, default=None)


def _line(name: str, samples: dict[float, Sample | None]) -> Line:
    drawn = {context: losses for context, losses in samples.items() if losses is not None}
    return Line(
        name,
        [(context, losses.mean) for context, losses in drawn.items()],
        bars=[(min(losses.values), max(losses.values)) for losses in drawn.values()],
    )


def _speed() -> str:
    result = load(Result, RESULTS / "screening.json")
    windows, no_window = "screening, windows 2 .. 257, r = 0.5", "screening, no window, r = 0.5"
    over_dense = _speedup(result, 4096, windows, "16 tiles")
    over_sdpa, without_windows = (_speedup(result, 16384, what, "8 tiles") for what in (windows, no_window))
    return (
        f"- **Speed**: a screening forward pass is {over_dense:.0f} times as fast as its dense definition (4,096 "
        f"tokens) and {over_sdpa:.0f} times as fast as SDPA, or {without_windows:.1f} times with infinite windows "
        f"(16,384 tokens, {result.machine.cpu}, {result.machine.threads} threads). [Performance](docs/performance.md)"
    )


def _speedup(result: Result, tokens: int, what: str, setting: str) -> float:
    (speedup,) = (
        timing.speedup.median
        for timing in result.rows
        if (timing.tokens, timing.what, timing.setting, timing.step) == (tokens, what, setting, "forward")
        and timing.speedup is not None
    )
    return speedup


def _recall() -> str:
    groups = _groups("one-hop-long")
    ours, theirs = _best(groups, "Multiscreen, open start"), _best(groups, "Transformer")
    expanded, plain, scaled = (
        group.accuracy_at(LENGTH, setting)
        for group, setting in ((ours, WINDOWS_EXPANDED), (theirs, AS_TRAINED), (theirs, ROPE_SCALED))
    )
    assert expanded is not None
    assert plain is not None
    assert scaled is not None
    return (
        f"- **Recall at {LENGTH} times the training length**: {expanded.mean:.0%} for a Multiscreen with expanded "
        f"windows, {plain.mean:.0%} for a Transformer of its size. A negative result: the same Transformer with "
        f"scaled RoPE reaches {scaled.mean:.0%}. [One-hop recall](evidence/one-hop-long/README.md), "
        f"[all claims](evidence/README.md)"
    )


def _needle() -> str:
    """Recall of the longest text with exact search, over all seeds."""
    stored = [data for name in ("million", "million-seeds") for data in safe_json.load(RESULTS / f"{name}.json")]
    records = [from_dict(LongRecall, data) for data in stored]
    ours = [record for record in records if record.subject.kind == "multiscreen"]
    length = min(record.lengths[-1] for record in ours)
    cells = [record.best(length) for record in ours]
    correct, total = sum(cell.correct for cell in cells), sum(cell.total for cell in cells)
    shipped = cells[0]
    assert shipped.in_window is not None
    assert shipped.read is not None
    model, seeds = ours[0].subject, "one seed" if len(ours) == 1 else f"{len(ours)} seeds"
    return (
        f"- **One needle in {length:,} tokens**: a Multiscreen with {model.parameters:,} parameters, trained on "
        f"{model.trained_length} tokens, answers {correct} of {total} questions ({seeds}; chance "
        f"{ours[0].chance:.0%}). Exact search reads {shipped.read / shipped.in_window:.0%} of the keys. "
        f"`keysift demo --million`, [exact search](docs/search.md)"
    )


def _exactness() -> str:
    result = load(Exactness, RESULTS / "exactness.json")
    return (
        f"- **Exactness**: {len({row.mechanism for row in result.rows})} mechanisms on "
        f"{len({row.backend for row in result.rows})} backends agree with their fp64 definition in value and every "
        f"gradient, up to twice the rounding error of plain fp32 torch: at most {result.worst.error:.1e} of the "
        f"largest entry, {result.worst.plain:.1e} in plain torch. [Mechanisms](docs/mechanisms/README.md)"
    )


def _groups(study: str) -> list[SeedGroup]:
    return group_by_seed(read_records(ROOT / study / "records.jsonl").values())


def _best(groups: Sequence[SeedGroup], name: str) -> SeedGroup:
    group = find_best(groups, name)
    assert group is not None, f"no finished run of {name}"
    return group

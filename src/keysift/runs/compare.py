"""What several runs say together: what differs, which is best, mean and spread over seeds. Free of torch."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keysift.core.config import config
from keysift.models.arch import DEFAULTS, field_names
from keysift.runs.summary import Summary

# Told by the description of the model, or about a session and not about what was learned.
_TOLD = {"arch", "depth", "tiles", "heads", "width", "mechanism", "seed"}
_SESSION = {
    *("steps", "minutes", "device", "strategy", "micro_tokens", "recompute", "compile", "track"),
    *("save_every", "keep_last", "keep_every", "keep_best", "sample_prompt", "sample_tokens"),
}


@config
class Compared:
    """One run among others."""

    name: str
    model: str
    differs: dict[str, str]
    """Settings that are not the same in all of them."""
    seed: str
    parameters: int
    state: str
    step: int
    steps: int | None
    loss: float | None
    validation: float | None
    bits_per_byte: float | None
    accuracy: float | None
    tokens_per_second: float | None
    best: bool
    losses: tuple[float, ...]
    validations: tuple[tuple[int, float], ...]


@config
class Group:
    """Runs that differ by their seed alone, with the mean and the standard deviation of their validation loss."""

    model: str
    differs: dict[str, str]
    parameters: int
    seeds: int
    mean: float
    spread: float | None
    """None for a single run."""
    accuracy: float | None
    """Mean, where every run has one."""
    best: bool


@config
class Comparison:
    """Runs and groups, best first; `fields` are the settings that differ."""

    fields: tuple[str, ...]
    runs: tuple[Compared, ...]
    groups: tuple[Group, ...]


def compare(found: Sequence[Summary], names: Sequence[str] | None = None) -> Comparison:
    """Best first, by bits per byte, so that tokenizers can be compared; runs without a figure last."""
    fields = _differing(found)
    order = sorted(range(len(found)), key=lambda at: _rank(found[at]))
    called = names if names is not None else short_names([Path(one.path) for one in found])
    best = next((at for at in order if _rank(found[at])[0] == 0), None)
    runs = tuple(
        Compared(
            name=called[at],
            model=found[at].model,
            differs=_chosen(found[at], fields),
            seed=_short(found[at].settings.get("seed")),
            parameters=found[at].parameters,
            state=found[at].state,
            step=found[at].step,
            steps=found[at].steps,
            loss=found[at].loss,
            validation=found[at].val_loss,
            bits_per_byte=found[at].bits_per_byte,
            accuracy=found[at].accuracy,
            tokens_per_second=found[at].tokens_per_second,
            best=at == best and len(found) > 1,
            losses=found[at].losses,
            validations=found[at].validations,
        )
        for at in order
    )
    return Comparison(fields=fields, runs=runs, groups=_groups(runs))


def _rank(one: Summary) -> tuple[int, float]:
    figure = one.bits_per_byte if one.bits_per_byte is not None else one.val_loss
    return (0, figure) if figure is not None and one.state != "diverged" else (1, 0.0)


def _differing(found: Sequence[Summary]) -> tuple[str, ...]:
    names = dict.fromkeys(name for one in found for name in one.settings)
    models = {name for arch in DEFAULTS.values() for name in field_names(arch)}

    def differs(name: str) -> bool:
        # A field of a model is told by its kind, unless runs of one kind differ in it.
        values = {(name in models and one.arch, _short(one.settings.get(name))) for one in found}
        return len(values) > len({one.arch for one in found} if name in models else {""})

    return tuple(name for name in names if name not in _TOLD and name not in _SESSION and differs(name))


def _chosen(one: Summary, fields: tuple[str, ...]) -> dict[str, str]:
    return {name: _short(one.settings.get(name)) for name in fields}


def _groups(runs: tuple[Compared, ...]) -> tuple[Group, ...]:
    """Only where at least two runs share all but the seed."""
    together: dict[tuple[Any, ...], list[Compared]] = {}
    for one in runs:
        if one.validation is not None and one.state != "diverged":
            together.setdefault((one.model, one.parameters, *one.differs.items()), []).append(one)
    if all(len(members) < 2 for members in together.values()):
        return ()
    means = {key: statistics.mean(one.validation or 0.0 for one in members) for key, members in together.items()}
    order = sorted(together, key=lambda key: means[key])
    return tuple(
        Group(
            model=together[key][0].model,
            differs=together[key][0].differs,
            parameters=together[key][0].parameters,
            seeds=len(together[key]),
            mean=means[key],
            spread=statistics.stdev(one.validation or 0.0 for one in together[key]) if len(together[key]) > 1 else None,
            accuracy=_mean([one.accuracy for one in together[key]]),
            best=key == order[0] and len(order) > 1,
        )
        for key in order
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if len(known) == len(values) else None


def short_names(paths: list[Path]) -> list[str]:
    """Each by its last part, or by as many as tell them apart."""
    for parts in range(1, 1 + max((len(path.parts) for path in paths), default=0)):
        names = [str(Path(*path.parts[-parts:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _short(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, list | tuple):
        return "/".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

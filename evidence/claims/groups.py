"""Records that differ only by their seed, as one group per model and learning rate."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from evidence.records import RunRecord
from keysift.core.config import config
from keysift.core.statistics import Sample
from keysift.data.options import options

RECALL_VALUES = 16  # default of keysift.data.tasks.recall.Recall, which imports torch


@config
class SeedSample(Sample):
    """Values of one quantity, one per seed."""

    seeds: tuple[int, ...]

    def minus(self, other: "SeedSample") -> tuple[float, ...]:
        """Differences for the seeds that both have, in the order of the seeds."""
        ours, theirs = (dict(zip(side.seeds, side.values, strict=True)) for side in (self, other))
        return tuple(ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys()))


def by_seed(values: Iterable[tuple[int, float | None]]) -> SeedSample | None:
    """Seeds with their values, without those that are None; None if no value is left."""
    known = {seed: value for seed, value in values if value is not None}
    return SeedSample(values=tuple(known.values()), seeds=tuple(known)) if known else None


@dataclass(frozen=True)
class SeedGroup:
    """The runs of one model at one learning rate, one per seed."""

    label: str
    rate: float
    records: tuple[RunRecord, ...]

    @property
    def parameters(self) -> int:
        return self.records[0].parameters

    @property
    def losses(self) -> SeedSample | None:
        """Validation losses of the runs that finished."""
        return by_seed((record.seed, record.val_loss) for record in self.records if record.finished)

    @property
    def accuracies(self) -> SeedSample | None:
        return by_seed((record.seed, record.accuracy) for record in self.records if record.finished)

    @property
    def diverged(self) -> int:
        return sum(not record.finished for record in self.records)

    def settings(self, measure: str) -> list[str]:
        """Settings the models were run with for a measurement: as trained, windows expanded, RoPE scaled, ..."""
        points = (point for record in self.records for point in record.measures.get(measure, []))
        return list(dict.fromkeys(point["setting"] for point in points))

    def accuracy_at(self, length: int, setting: str) -> SeedSample | None:
        """Share of correct answers at a multiple of the training length, over all depths."""
        return by_seed((record.seed, record.accuracy_at(length, setting)) for record in self.records)

    def loss_at(self, context: float, setting: str) -> SeedSample | None:
        """Loss of tokens with this much context before them, in training lengths."""
        losses = []
        for record in self.records:
            tokens = context * record.settings["context"]
            points = record.measures.get("positions", [])
            losses += [(record.seed, p["nats"]) for p in points if p["context"] == tokens and p["setting"] == setting]
        return by_seed(losses)

    def loss_at_best_rope(self, context: float) -> SeedSample | None:
        """The lowest mean loss over RoPE factors."""
        scaled = [setting for setting in self.settings("positions") if setting.startswith("RoPE")]
        samples = [losses for setting in scaled if (losses := self.loss_at(context, setting)) is not None]
        return min(samples, key=lambda losses: losses.mean, default=None)

    def context_gain_at(self, length: int, setting: str) -> SeedSample | None:
        """Loss with the context cut to the training length minus loss with all of it, at a multiple of that length."""
        return by_seed((record.seed, record.context_gain_at(length, setting)) for record in self.records)

    def tokens_until(self, accuracy: float) -> SeedSample | None:
        """Training tokens until the validation accuracy; those of the whole run where it is never reached."""
        measured = (record for record in self.records if "accuracy_by_step" in record.measures)
        return by_seed((r.seed, r.tokens_until(accuracy) or r.tokens) for r in measured)

    def never_reached(self, accuracy: float) -> int:
        return sum(record.tokens_until(accuracy) is None for record in self.records)

    @property
    def accepted_at_random(self) -> float:
        """Share of independent random keys that the initial acceptance of a Multiscreen accepts."""
        settings = self.records[0].settings
        return accepted_share(settings["acceptance_start"][0], settings["key_width"])


def accepted_share(acceptance: float, key_width: int) -> float:
    """Probability that the cosine of two random directions exceeds 1 - acceptance."""
    return float(stats.beta.sf((2 - acceptance) / 2, (key_width - 1) / 2, (key_width - 1) / 2))


def group_by_seed(records: Iterable[RunRecord]) -> list[SeedGroup]:
    groups: dict[tuple[str, float, int], list[RunRecord]] = {}
    for record in records:
        key = label(record.settings), float(record.settings["lr"]), record.parameters
        groups.setdefault(key, []).append(record)
    return [SeedGroup(name, rate, tuple(members)) for (name, rate, _), members in groups.items()]


def best_groups(groups: Sequence[SeedGroup]) -> list[SeedGroup]:
    """For each model and size, the rate with the most finished seeds; among those, the lowest mean loss."""
    best: dict[tuple[str, int], SeedGroup] = {}
    for group in groups:
        current = best.get((group.label, group.parameters))
        if group.losses is not None and (current is None or _rank(group) < _rank(current)):
            best[group.label, group.parameters] = group
    return list(best.values())


def find_best(groups: Sequence[SeedGroup], name: str) -> SeedGroup | None:
    """The best group with this label."""
    return next((group for group in best_groups(groups) if group.label == name), None)


def _rank(group: SeedGroup) -> tuple[int, float]:
    losses = group.losses
    return (0, math.inf) if losses is None else (-len(losses), losses.mean)


def chance(settings: dict[str, Any]) -> float:
    """Accuracy of guessing among the values of recall; 0 for a task whose answer has several tokens."""
    name, _, rest = str(settings["data"]).partition(":")
    return 1 / options(rest).get("values", RECALL_VALUES) if name == "recall" else 0.0


_STARTS = {(0.98,): "open start"}


def label(settings: dict[str, Any]) -> str:
    """Short name of a model, from the settings that tell models of a study apart."""
    if settings["arch"] == "transformer":
        parts = ["Transformer", *([] if settings["mechanism"] == "softmax" else [str(settings["mechanism"])])]
        position, window = (
            _pattern(settings.get(name, default)) for name, default in (("position", "rope"), ("window", 0))
        )
        parts += [] if position == "rope" else [position.replace("none", "NoPE").replace("alibi", "ALiBi")]
        parts += [] if window == "0" else [f"window {window}"]
        parts += [f"first {settings['kept']} kept"] if settings.get("kept") else []
        parts += ["QK norm"] if settings["qk_norm"] else []
        return ", ".join([*parts, *([] if settings.get("clip") is None or settings["clip"] else ["not clipped"])])
    start = tuple(settings["acceptance_start"])
    parts = ["Multiscreen"]
    parts += (
        [] if start == (0.5,) else [_STARTS.get(start, f"start {start[0]:g}" if len(start) == 1 else "spread start")]
    )
    parts += [] if settings["key_width"] == 16 else [f"key width {settings['key_width']}"]
    parts += ["clipped"] if settings.get("clip") else []
    parts += [] if settings["position"] == "mipe" else ["RoPE" if settings["position"] == "rope" else "no position"]
    parts += [] if settings["norm"] == "tanh" else ["no TanhNorm"]
    parts += [] if settings["gate"] else ["no gate"]
    parts += [] if settings["acceptance"] == "learned" else [f"r = {settings['acceptance']:g}"]
    parts += [f"decay {settings['weight_decay']:g}"] if settings["weight_decay"] else []
    return ", ".join(parts)


def _pattern(value: Any) -> str:
    """A setting that is one value or a pattern of layers."""
    return "/".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

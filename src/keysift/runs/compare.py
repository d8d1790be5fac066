"""Compare runs: settings that differ, the best run, mean and standard deviation over seeds. Free of torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keysift.core.statistics import Sample, sample
from keysift.models.architecture import DEFAULT_ARCHS, field_names
from keysift.records.runs import ComparedRun, Comparison, RunGroup, RunLabel, RunSummary

# Settings that the description of the model contains.
_IN_MODEL_NAME = {"arch", "depth", "tiles", "heads", "width", "mechanism", "seed"}
_OF_A_MODEL = ("lr", "warmup", "seed")  # settings that vary within a model
_MAX_NAME = 24  # characters of a directory name that serves as a label
# Settings of a session, which do not affect the result.
_SESSION = {
    *("steps", "minutes", "device", "strategy", "micro_tokens", "recompute", "compile", "track"),
    *("save_every", "keep_last", "keep_every", "keep_best", "sample_prompt", "sample_tokens"),
}


def compare(summaries: Sequence[RunSummary], names: Sequence[str] | None = None) -> Comparison:
    """Sort runs, best first, by bits per byte (comparable over tokenizers) or validation loss; unknown values last."""
    fields = _differing_settings(summaries)
    run_names = names if names is not None else short_names([Path(run.path) for run in summaries])
    labels = run_labels(summaries, run_names)
    ordered = sorted(zip(run_names, labels, summaries, strict=True), key=lambda row: _rank(row[2]))
    runs = tuple(
        ComparedRun(
            name=name,
            label=label,
            model=run.model,
            differs={field: setting_text(run, field) for field in fields},
            seed=setting_text(run, "seed"),
            parameters=run.parameters,
            state=run.state,
            step=run.step,
            steps=run.steps,
            loss=run.loss,
            validation=run.val_loss,
            bits_per_byte=run.bits_per_byte,
            accuracy=run.accuracy,
            tokens_per_second=run.tokens_per_second,
            best=place == 0 and len(summaries) > 1 and _rank(run)[0] == 0,
            losses=run.losses,
            validations=run.validations,
        )
        for place, (name, label, run) in enumerate(ordered)
    )
    return Comparison(fields=fields, runs=runs, groups=_groups(runs))


def _rank(run: RunSummary) -> tuple[int, float]:
    """Sort key: runs with a value first, then by value."""
    value = run.bits_per_byte if run.bits_per_byte is not None else run.val_loss
    return (0, value) if value is not None and run.state != "diverged" else (1, 0.0)


def _differing_settings(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    names = dict.fromkeys(name for run in summaries for name in run.settings)
    model_fields = {name for arch in DEFAULT_ARCHS.values() for name in field_names(arch)}

    def differs(name: str) -> bool:
        # A field of the model differs only if it differs between runs of one architecture.
        values = {(name in model_fields and run.arch, setting_text(run, name)) for run in summaries}
        return len(values) > len({run.arch for run in summaries} if name in model_fields else {""})

    return tuple(name for name in names if name not in _IN_MODEL_NAME and name not in _SESSION and differs(name))


def labelling_settings(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """Settings that differ between runs of one model. Others follow from the model, such as its default clipping."""
    return tuple(
        name
        for name in _differing_settings(summaries)
        if len({(run.model, setting_text(run, name)) for run in summaries}) > len({r.model for r in summaries})
    )


def run_labels(summaries: Sequence[RunSummary], names: Sequence[str]) -> list[RunLabel]:
    """Short labels that show what differs. `names` are the directory names; they are the labels if all are short."""
    fields = labelling_settings(summaries)
    models = _short_models(summaries)

    def label(run: RunSummary, without: Sequence[str] = ()) -> str:
        settings = [f"{name} {setting_text(run, name)}" for name in fields if name not in without]
        settings = [setting for setting in settings if not setting.endswith(" ")]
        return ", ".join([*filter(None, [models[run.model]]), *settings]) or run.model

    groups = [label(run) for run in summaries]
    labels = [
        f"{group}, seed {setting_text(run, 'seed')}" if groups.count(group) > 1 else group
        for group, run in zip(groups, summaries, strict=True)
    ]
    if max(map(len, names), default=0) <= _MAX_NAME and len(set(names)) == len(names):
        groups = [group if groups.count(group) > 1 else name for group, name in zip(groups, names, strict=True)]
        labels = list(names)
    # Runs that differ in nothing but their directory.
    labels = [
        f"{label}, {name}" if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)
    ]
    return [
        RunLabel(name=name, group=group, model=label(run, without=_OF_A_MODEL))
        for name, group, run in zip(labels, groups, summaries, strict=True)
    ]


def _short_models(summaries: Sequence[RunSummary]) -> dict[str, str]:
    """Architecture, size and mechanism of each model, as far as they differ between the runs."""
    parts = {run.model: (run.arch, *_size_and_mechanism(run)) for run in summaries}
    archs = {arch for arch, _, _ in parts.values()}
    short = {}
    for model, (arch, size, mechanism) in parts.items():
        same_arch = [other for other in parts.values() if other[0] == arch]
        words = [arch] if len(archs) > 1 else []
        words += [size] if len({other[1] for other in same_arch}) > 1 else []
        words += [mechanism] if len({other[2] for other in same_arch}) > 1 else []
        short[model] = " ".join(filter(None, words))
    return short


def _size_and_mechanism(run: RunSummary) -> tuple[str, str]:
    size, _, mechanism = run.model.removeprefix(run.arch).strip().partition(", ")
    return size, mechanism


def _groups(runs: tuple[ComparedRun, ...]) -> tuple[RunGroup, ...]:
    """Runs that differ in the seed only; empty if no group has two runs."""
    groups: dict[tuple[Any, ...], list[ComparedRun]] = {}
    for run in runs:
        if run.validation is not None and run.state != "diverged":
            groups.setdefault((run.model, run.parameters, *run.differs.items()), []).append(run)
    if all(len(members) < 2 for members in groups.values()):
        return ()
    losses = {
        key: Sample(values=tuple(run.validation for run in members if run.validation is not None))
        for key, members in groups.items()
    }
    order = sorted(losses, key=lambda key: losses[key].mean)
    return tuple(
        RunGroup(
            label=groups[key][0].label.group,
            model=groups[key][0].model,
            differs=groups[key][0].differs,
            parameters=groups[key][0].parameters,
            val_losses=losses[key],
            accuracy=_mean([run.accuracy for run in groups[key]]),
            best=key == order[0] and len(order) > 1,
        )
        for key in order
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean, or None if a value is missing."""
    known = sample(values)
    return known.mean if known is not None and len(known) == len(values) else None


def short_names(paths: list[Path]) -> list[str]:
    """The last part of each path, or as many parts as make the names unique."""
    for parts in range(1, 1 + max((len(path.parts) for path in paths), default=0)):
        names = [str(Path(*path.parts[-parts:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def setting_text(run: RunSummary, name: str) -> str:
    """A setting of a run as text; empty if the run does not have it."""
    return _format(run.settings.get(name))


def _format(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, list | tuple):
        return "/".join(map(_format, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

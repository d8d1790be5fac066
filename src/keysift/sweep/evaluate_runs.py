"""Evaluate runs: the measurements of a report that take seconds on a small model. Records are stored in the run."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keysift.core.errors import KeysiftError
from keysift.evaluate.loss import measure_loss
from keysift.evaluate.measured_model import MeasuredModel, open_measured_model
from keysift.evaluate.positions import measure_positions
from keysift.evaluate.retrieval import inference_settings, measure_retrieval
from keysift.evaluate.retrieval_tasks import RATIOS, default_lengths
from keysift.evaluate.texts import first_tokens
from keysift.evaluate.windows import measure_windows
from keysift.lens.diagnostics.relevance_maps import relevance_maps
from keysift.lens.keysift_model import KeysiftModel
from keysift.records.evaluation import (
    LossByPosition,
    Record,
    RelevanceMaps,
    Retrieval,
    TextLoss,
    Windows,
    read_records,
    write_record,
)
from keysift.records.runs import RunSummary
from keysift.runs.layout import EVALS
from keysift.runs.summary import summary

# Defaults of `keysift eval retrieval`, `windows` and `relevance`, so that commands in records stay short.
DEPTHS, INSTANCES = (0.1, 0.3, 0.5, 0.7, 0.9), 50
WINDOW_TOKENS, MAP_TOKENS = 512, 64
LOSS_TOKENS, DOCUMENTS = 16_384, 4


@dataclass(frozen=True)
class Evaluation:
    """A measurement of one run and the file in its evals folder."""

    name: str
    record: type
    measure: Callable[[MeasuredModel], Record]


def evaluate_missing(paths: Sequence[Path], *, on_start: Callable[[Path, str], None]) -> list[str]:
    """Make the cheap evaluations that runs lack at their newest checkpoint. Returns a line for each that failed.

    Each record is written as soon as it is measured, so an interrupted call loses nothing.
    """
    failures = []
    for path in paths:
        run = summary(path)
        existing = {type(record) for record in read_records(path / EVALS)[0] if record.subject.step == run.saved}
        for evaluation in cheap_evaluations(run):
            if evaluation.record in existing:
                continue
            on_start(path, evaluation.name)
            try:
                record = evaluation.measure(open_measured_model(str(path)))
                write_record(record, path / EVALS, evaluation.name)
            except KeysiftError as error:
                failures.append(f"{path}: {evaluation.name} was not measured: {error}")
    return failures


def cheap_evaluations(run: RunSummary) -> Iterator[Evaluation]:
    """Retrieval of a run on recall, loss and loss by position of a run on text; windows and maps of both."""
    if run.data.partition(":")[0] == "recall":
        yield Evaluation("recall", Retrieval, lambda measured: measure_recall(measured, rope_factors=_factors(run)))
    else:
        yield Evaluation("loss", TextLoss, lambda measured: _loss(measured, run.data))
        yield Evaluation("positions", LossByPosition, lambda measured: _positions(measured, run))
    yield Evaluation("windows", Windows, lambda measured: _windows(measured, run.data))
    yield Evaluation("relevance", RelevanceMaps, lambda measured: measure_relevance(measured, run.data))


def measure_recall(
    measured: MeasuredModel,
    *,
    rope_factors: Sequence[float],
    depths: Sequence[float] = DEPTHS,
    instances: int = INSTANCES,
) -> Retrieval:
    """Recall at 1 to 64 times the training length, as trained and with each way to run the model on longer texts."""
    expand = measured.subject.kind == "multiscreen"
    flags = ["--task", "recall"]
    flags += [] if tuple(depths) == DEPTHS else ["--depths", *(f"{depth:g}" for depth in depths)]
    flags += [] if instances == INSTANCES else ["--instances", str(instances)]
    return measure_retrieval(
        measured,
        "recall",
        lengths=default_lengths("recall", measured.subject.trained_length),
        depths=depths,
        settings=inference_settings(rope_factors, expand_windows=expand),
        instances=instances,
        seed=0,
        log_folder=Path(measured.subject.name) / EVALS,
        command=_command("retrieval", measured, *flags, *_setting_flags(rope_factors, expand)),
    )


def measure_relevance(
    measured: MeasuredModel, text: str, *, tokens: int = MAP_TOKENS, command: str | None = None
) -> RelevanceMaps:
    """Relevance maps of every head on the first tokens of a text."""
    ids = first_tokens(text, measured.tokenizer, tokens).ids
    model = KeysiftModel(measured.model, measured.tokenizer, measured.subject.name)
    command = _command("relevance", measured, "--text", text) if command is None else command
    return replace(
        relevance_maps(model, ids.tolist(), source=text, command=command),
        subject=measured.subject,
    )


def _loss(measured: MeasuredModel, text: str) -> TextLoss:
    command = _command("loss", measured, "--text", text, "--tokens", str(LOSS_TOKENS))
    return measure_loss(measured, text, tokens=LOSS_TOKENS, command=command).record


def _positions(measured: MeasuredModel, run: RunSummary) -> LossByPosition:
    factors = _factors(run)
    expand = run.arch == "multiscreen"
    flags = ("--text", run.data, "--documents", str(DOCUMENTS), *_setting_flags(factors, expand))
    length = default_position_length(measured)
    return measure_positions(
        measured,
        run.data,
        length=length,
        contexts=powers_of_two(length),
        documents=DOCUMENTS,
        settings=inference_settings(factors, expand_windows=expand),
        command=_command("positions", measured, *flags),
    )


def _windows(measured: MeasuredModel, text: str) -> Windows:
    return measure_windows(measured, text, tokens=WINDOW_TOKENS, command=_command("windows", measured, "--text", text))


def default_position_length(measured: MeasuredModel) -> int:
    """16 times the training length."""
    return 16 * (measured.subject.trained_length or 64)


def powers_of_two(length: int) -> list[int]:
    """16, 32, ... up to `length`."""
    return [2**n for n in range(4, length.bit_length()) if 2**n <= length]


def _factors(run: RunSummary) -> tuple[float, ...]:
    """RoPE factors to try: none for a model without RoPE."""
    if run.settings.get("position") != "rope":
        return ()
    return tuple(map(float, RATIOS[1:])) if run.data.partition(":")[0] == "recall" else (4.0, 16.0)


def _setting_flags(rope_factors: Sequence[float], expand_windows: bool) -> list[str]:
    factors = ["--rope-factors", *(f"{factor:g}" for factor in rope_factors)] if rope_factors else []
    return [*(["--expand-windows"] if expand_windows else []), *factors]


def _command(measurement: str, measured: MeasuredModel, *flags: str) -> str:
    """The command that makes the same record."""
    return shlex.join(["keysift", "eval", measurement, measured.subject.name, *flags])

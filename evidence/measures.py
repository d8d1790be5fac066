"""Measurements of a trained run, for its record: accuracy by length, loss by position, learned windows.

Each is a list of plain dictionaries, one per point of a figure.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evidence.study import POSITIONS, Plan
from keysift.core.config import to_dict
from keysift.evaluate.measured_model import MeasuredModel, open_measured_model
from keysift.evaluate.positions import TOLERANCE, measure_positions
from keysift.evaluate.retrieval import count_correct_targets, inference_settings, measure_retrieval
from keysift.evaluate.retrieval_tasks import TEST_SEED_OFFSET, recall_task
from keysift.models.architecture import MultiscreenArch
from keysift.nn.inference import Inference
from keysift.records.evaluation import AS_TRAINED, ROPE_SCALED

Points = list[dict[str, Any]]
YARN = "YaRN"
DEVELOPMENT = "development"  # the measurement that chooses a grid point, on rows that decide no claim

# Rows of recall by multiple of the training length. Long rows are expensive. Every needle of a row is queried.
RECALL_ROWS = {1: 96, 2: 96, 4: 96, 8: 64, 16: 48, 32: 24, 64: 16}
ROW_OFFSET = 10_000  # between the row numbers of two lengths, so that no two lengths share their rows
ABCDIGITS_LENGTHS = (1, 2, 4)
ABCDIGITS_SEED = 123
DEPTHS, INSTANCES = (0.1, 0.5, 0.9), 8
ROPE_FACTORS = (2, 4, 8, 16, 32, 64)
DOCUMENTS = 16


def measure(run_dir: Path, plan: Plan, names: Iterable[str]) -> dict[str, Points]:
    """The named measurements of a run."""
    if not names:
        return {}
    run = open_measured_model(str(run_dir))
    accuracy = abcdigits_accuracy if run.trained_on.startswith("abcdigits") else recall_accuracy
    measurements = {
        "lengths": lambda: accuracy(run),
        "positions": lambda: loss_by_position(run, plan.texts),
        "windows": lambda: learned_windows(run),
        DEVELOPMENT: lambda: development_accuracy(run, plan.choose_at),
    }
    return {name: measurements[name]() for name in names}


def development_accuracy(run: MeasuredModel, ratio: int) -> Points:
    """Needles of recall retrieved as trained at a multiple of the training length, on rows that no claim uses."""
    task = recall_task(run.tokenizer, seed=TEST_SEED_OFFSET + 1, trained_on=run.trained_on)
    length = ratio * _training_length(run)
    rows = [task.row(number, length=length, needles_only=True) for number in range(RECALL_ROWS[ratio])]
    correct, total = count_correct_targets(run.model, rows)
    return [{"length": length, "setting": AS_TRAINED, "correct": correct, "total": total, "ratio": ratio}]


def recall_accuracy(run: MeasuredModel) -> Points:
    """Needles of recall retrieved at every length, as trained and with the model's option for longer texts."""
    task = recall_task(run.tokenizer, seed=TEST_SEED_OFFSET, trained_on=run.trained_on)
    cells = []
    for ratio, count in RECALL_ROWS.items():
        length = ratio * _training_length(run)
        rows = [task.row(ratio * ROW_OFFSET + number, length=length, needles_only=True) for number in range(count)]
        for setting, inference in _settings(run, ratio).items():
            correct, total = count_correct_targets(run.model, rows, inference=inference)
            cell = {"length": length, "setting": setting, "correct": correct, "total": total}
            cells.append({**cell, "rows": count, "ratio": ratio})
    return cells


def abcdigits_accuracy(run: MeasuredModel) -> Points:
    """Numbers of ABCDigits with every digit correct, by length and depth."""
    trained = _training_length(run)
    cells = []
    for ratio in ABCDIGITS_LENGTHS:
        record = measure_retrieval(
            run,
            "abcdigits",
            lengths=[ratio * trained],
            depths=DEPTHS,
            settings=_settings(run, ratio),
            instances=INSTANCES,
            seed=ABCDIGITS_SEED,
        )
        cells += [{**to_dict(cell), "ratio": ratio} for cell in record.cells]
    return cells


def loss_by_position(run: MeasuredModel, texts: str) -> Points:
    """Loss on long documents at contexts up to 64 training lengths."""
    trained = _training_length(run)
    longest = round(POSITIONS[-1] * trained * (1 + TOLERANCE)) + 1  # a point averages positions around it
    # The best RoPE factor depends on the position, so all are measured.
    settings = _settings(run, 1) if _is_multiscreen(run) else inference_settings(map(float, ROPE_FACTORS))
    contexts = [round(ratio * trained) for ratio in POSITIONS]
    record = measure_positions(run, texts, length=longest, contexts=contexts, documents=DOCUMENTS, settings=settings)
    return [to_dict(point) for point in record.points]


def learned_windows(run: MeasuredModel) -> Points:
    """Window and acceptance of every tile, by layer; nothing for a Transformer."""
    if not _is_multiscreen(run):
        return []
    return [
        {"layer": layer, "windows": values["window"].tolist(), "acceptances": values["acceptance"].flatten().tolist()}
        for layer, values in enumerate(run.model.scalars())
    ]


def _settings(run: MeasuredModel, ratio: int) -> dict[str, Inference]:
    """As trained, and with expanded windows (Multiscreen) or with RoPE scaled to the length, linearly and by YaRN."""
    if _is_multiscreen(run):
        return inference_settings(expand_windows=True)
    settings = inference_settings()
    if ratio == 1 or getattr(run.model.config, "position", None) != "rope":
        return settings
    yarn = Inference(rope_scaling=f"yarn:factor={ratio}")
    return {**settings, ROPE_SCALED: Inference(rope_factor=float(ratio)), YARN: yarn}


def _is_multiscreen(run: MeasuredModel) -> bool:
    return isinstance(run.model.config, MultiscreenArch)


def _training_length(run: MeasuredModel) -> int:
    context = run.model.config.context
    assert isinstance(context, int), "the config of a run has its training length"
    return context

"""Measurements of a trained run, for its record: accuracy by length, loss by position, learned windows, and others.

Each is a list of plain dictionaries, one per point of a figure. Texts are held-out documents in evidence.held_out.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evidence import held_out
from evidence.held_out import Array
from evidence.study import DEVELOPMENT, POSITIONS, Plan
from keysift.core.config import to_dict
from keysift.evaluate.measured_model import MeasuredModel, open_measured_model
from keysift.evaluate.positions import TOLERANCE, measure_positions
from keysift.evaluate.retrieval import count_correct_targets, inference_settings, measure_retrieval
from keysift.evaluate.retrieval_tasks import TEST_SEED_OFFSET, recall_task
from keysift.evaluate.scoring import score_targets
from keysift.evaluate.windows import head_statistics
from keysift.models.architecture import MultiscreenArch
from keysift.nn.inference import Inference
from keysift.records.evaluation import AS_TRAINED, ROPE_SCALED
from keysift.runs.layout import METRICS
from keysift.runs.metrics import read
from keysift.runs.summary import summary

Points = list[dict[str, Any]]
YARN = "YaRN"

# Rows of recall by multiple of the training length. Long rows are expensive. Every needle of a row is queried.
RECALL_ROWS = {1: 96, 2: 96, 4: 96, 8: 64, 16: 48, 32: 24, 64: 16}
ROW_OFFSET = 10_000  # between the row numbers of two lengths, so that no two lengths share their rows
ABCDIGITS_LENGTHS = (1, 2, 4)
ABCDIGITS_SEED = 123
DEPTHS, INSTANCES = (0.1, 0.5, 0.9), 8
ROPE_FACTORS = (2, 4, 8, 16, 32, 64)
GAIN_RATIOS = (1, 2, 4, 8, 16)  # of the training length, for the gain from the context
DOCUMENTS = 16
HELD_OUT = 24  # documents for the gain from the context


def measure(run_dir: Path, plan: Plan, names: Iterable[str]) -> dict[str, Points]:
    """The named measurements of a run."""
    if not names:
        return {}
    run = open_measured_model(str(run_dir))
    accuracy = abcdigits_accuracy if run.trained_on.startswith("abcdigits") else recall_accuracy
    measurements: dict[str, Callable[[], Points]] = {
        "lengths": lambda: accuracy(run),
        "positions": lambda: loss_by_position(run, plan.texts),
        "windows": lambda: learned_windows(run, sample_tokens(run, run_dir)),
        "accuracy_by_step": lambda: accuracy_by_step(run_dir),
        "context_gain": lambda: context_gain(run, held_out.long_documents(run_dir, longest_context(run), HELD_OUT)),
        "unigram": lambda: [{"nats": held_out.unigram_entropy(run_dir)}],
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


def accuracy_by_step(run_dir: Path) -> Points:
    """Accuracy of every validation during training."""
    batch = summary(run_dir).settings["batch_tokens"]
    return [
        {"step": line["step"], "tokens": line["step"] * batch, "accuracy": line["val_accuracy"]}
        for line in read(run_dir / METRICS)
        if "val_accuracy" in line
    ]


def longest_context(run: MeasuredModel) -> int:
    """Tokens of a document that `context_gain` reads."""
    return GAIN_RATIOS[-1] * _training_length(run)


def context_gain(run: MeasuredModel, documents: Sequence[Array]) -> Points:
    """Loss of the same tokens with all of the context and with the context cut to the training length.

    At a multiple r of the training length T, the tokens are the last T/2 of the first r T tokens of each document. The
    cut context starts T tokens before their end and is read as in training.
    """
    trained = _training_length(run)
    rows = torch.from_numpy(np.stack([ids[: longest_context(run) + 1] for ids in documents]).astype(np.int64))

    def mean_loss(start: int, end: int, inference: Inference | None) -> float:
        """Over the last T/2 of tokens [start, end)."""
        losses = [
            score_targets(run.model, row[None, start:end], row[None, start + 1 : end + 1], inference=inference).loss_BT
            for row in rows
        ]
        return float(torch.cat(losses)[:, -(trained // 2) :].double().mean())

    points = []
    for ratio in GAIN_RATIOS:
        end = ratio * trained
        cut = mean_loss(end - trained, end, None)
        for setting, inference in _settings(run, ratio).items():
            nats = cut if ratio == 1 and setting == AS_TRAINED else mean_loss(0, end, inference)
            point = {"context": end, "ratio": ratio, "setting": setting, "nats": nats, "cut_nats": cut}
            points.append({**point, "documents": len(rows)})
    return points


def learned_windows(run: MeasuredModel, tokens_1T: Tensor) -> Points:
    """Window, acceptance and accepted keys per query of every tile, by layer; nothing for a Transformer."""
    if not _is_multiscreen(run):
        return []
    count = tokens_1T.shape[1]
    heads = head_statistics(run.model, tokens_1T)
    return [
        {
            "layer": layer,
            "windows": values["window"].tolist(),
            "acceptances": values["acceptance"].flatten().tolist(),
            "accepted_keys": [head.accepted * (count + 1) / 2 for head in heads if head.layer == layer],
            "tokens": count,
        }
        for layer, values in enumerate(run.model.scalars())
    ]


def sample_tokens(run: MeasuredModel, run_dir: Path) -> Tensor:
    """Tokens on which accepted keys are counted: a recall row of four training lengths, or held-out text."""
    length = 4 * _training_length(run)
    if run.trained_on.startswith("recall"):
        task = recall_task(run.tokenizer, seed=TEST_SEED_OFFSET, trained_on=run.trained_on)
        return torch.from_numpy(task.row(0, length=length)[0])[None]
    return torch.from_numpy(held_out.long_documents(run_dir, length, 1)[0][:length])[None]


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

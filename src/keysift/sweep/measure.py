"""What is measured of a run once it is trained, for its record: plain dictionaries, one for each point of a figure."""

from pathlib import Path
from typing import Any

from keysift.core.config import to_dict
from keysift.evaluate.positions import WITHIN, losses_by_position, points, stretches
from keysift.evaluate.retrieval import answers, grid
from keysift.evaluate.tasks import HELD_OUT, find_task, recall_of
from keysift.evaluate.texts import long_documents
from keysift.models.arch import MultiscreenArch
from keysift.nn.inference import Inference
from keysift.runs.summary import summary
from keysift.runs.text_model import TextModel
from keysift.runs.text_model import open as open_model
from keysift.sweep.outline import POSITIONS, Plan

# Rows of recall by multiple of the training length; long rows cost most. Every needle of a row is asked.
ROWS = {1: 96, 2: 96, 4: 96, 8: 64, 16: 48, 32: 24, 64: 16}
APART = 10_000  # row numbers of one multiple, so that no two lengths share their letters
ABCDIGITS = (1, 2, 4)
DEPTHS, INSTANCES = (0.1, 0.5, 0.9), 8
ROPE_FACTORS = (2, 4, 8, 16, 32, 64)
DOCUMENTS = 16


def measured(run: Path, plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """Every measure of the plan, by its name."""
    found, data = open_model(run), summary(run).data
    known = {
        "lengths": lambda: abcdigits(found) if data.startswith("abcdigits") else lengths(found, data),
        "positions": lambda: positions(found, plan.texts),
        "windows": lambda: windows(found),
    }
    return {name: known[name]() for name in plan.measure}


def lengths(found: TextModel, trained_on: str) -> list[dict[str, Any]]:
    """Needles of recall found at every length, as trained and with what the model has for longer texts."""
    trained = _trained(found)
    task = recall_of(found.tokenizer, seed=HELD_OUT, trained_on=trained_on)
    cells = []
    for ratio, many in ROWS.items():
        length = ratio * trained
        rows = [task.row(ratio * APART + number, length=length, needles_only=True) for number in range(many)]
        for setting, inference in _settings(found, ratio).items():
            right, asked = answers(found.model, rows, inference=inference)
            told = {"length": length, "setting": setting, "right": right, "asked": asked}
            cells.append({**told, "rows": many, "ratio": ratio})
    return cells


def abcdigits(found: TextModel) -> list[dict[str, Any]]:
    """Whole numbers of ABCDigits, by length and depth."""
    trained = _trained(found)
    task = find_task("abcdigits", found, seed=123)
    cells = []
    for ratio in ABCDIGITS:
        settings = _settings(found, ratio)
        cells += grid(
            found.model, task, lengths=[ratio * trained], depths=DEPTHS, settings=settings, instances=INSTANCES
        )
    return [{**to_dict(cell), "ratio": cell.length // trained} for cell in cells]


def positions(found: TextModel, texts: str) -> list[dict[str, Any]]:
    """Loss by position on long documents."""
    trained = _trained(found)
    longest = round(POSITIONS[-1] * trained * (1 + WITHIN)) + 1  # a point is the mean so far around it
    rows = stretches(long_documents(texts, found.tokenizer, longest, DOCUMENTS), longest)
    settings = _settings(found, 1)
    if not isinstance(found.model.config, MultiscreenArch):
        # Which factor is best depends on the position: a claim takes the best.
        settings |= {f"RoPE x{factor}": Inference(rope_factor=float(factor)) for factor in ROPE_FACTORS}
    losses = losses_by_position(found.model, rows, settings=settings)
    return [to_dict(one) for one in points(losses, [round(ratio * trained) for ratio in POSITIONS])]


def windows(found: TextModel) -> list[dict[str, Any]]:
    """What the tiles of each layer have learned; nothing of a Transformer."""
    if not isinstance(found.model.config, MultiscreenArch):
        return []
    return [
        {"layer": layer, "windows": told["window"].tolist(), "acceptances": told["acceptance"].flatten().tolist()}
        for layer, told in enumerate(found.model.scalars())
    ]


def _settings(found: TextModel, ratio: int) -> dict[str, Inference]:
    settings = {"as trained": Inference()}
    if isinstance(found.model.config, MultiscreenArch):
        settings["windows expanded"] = Inference(expand_windows=True)
    elif ratio > 1:
        settings["RoPE scaled"] = Inference(rope_factor=float(ratio))
    return settings


def _trained(found: TextModel) -> int:
    context = found.model.config.context
    assert isinstance(context, int), "a run keeps its training length"
    return context

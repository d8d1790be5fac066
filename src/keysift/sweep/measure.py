"""What is measured of a run once it is trained, for its record: plain dictionaries, one for each point of a figure."""

from pathlib import Path
from typing import Any

from keysift.core.config import to_dict
from keysift.evaluate.positions import losses_by_position, points, stretches
from keysift.evaluate.retrieval import grid
from keysift.evaluate.tasks import find_task
from keysift.evaluate.texts import long_documents
from keysift.models.arch import MultiscreenArch
from keysift.nn.inference import Inference
from keysift.runs.text_model import TextModel
from keysift.runs.text_model import open as open_model
from keysift.sweep.study import Plan

RATIOS = (1, 2, 4, 8, 16, 32, 64)
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
INSTANCES = 8  # for each length and depth: forty for each length
DOCUMENTS = 8


def measured(run: Path, plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """Every measure of the plan, by its name."""
    known = {"lengths": lengths, "positions": positions}
    return {name: known[name](open_model(run), plan) for name in plan.measure}


def lengths(found: TextModel, plan: Plan) -> list[dict[str, Any]]:
    """Accuracy of one needle at every length, as trained and with what the model has for longer texts."""
    trained = _trained(found)
    task = find_task("recall", found, seed=0)
    cells = []
    for ratio in RATIOS:
        settings = _settings(found, ratio)
        cells += grid(
            found.model, task, lengths=[ratio * trained], depths=DEPTHS, settings=settings, instances=INSTANCES
        )
    return [{**to_dict(cell), "ratio": cell.length // trained} for cell in cells]


def positions(found: TextModel, plan: Plan) -> list[dict[str, Any]]:
    """Loss by position on long documents."""
    trained = _trained(found)
    longest = RATIOS[-3] * trained
    rows = stretches(long_documents(plan.texts, found.tokenizer, longest, DOCUMENTS), longest)
    losses = losses_by_position(found.model, rows, settings=_settings(found, RATIOS[-3]))
    return [to_dict(one) for one in points(losses, [ratio * trained // 2 for ratio in RATIOS[:-2]])]


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

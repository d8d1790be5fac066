"""keysift models in lm-eval (extra [lm]), which evaluates language models on named tasks.

    keysift eval lm runs/first --tasks lambada_openai
    lm_eval --model keysift --model_args pretrained=runs/first --tasks lambada_openai

It is lm-eval's class for transformers models with a keysift model inside.
"""

from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

import keysift.hub  # noqa: F401
from keysift.models.model_type import CONFIG
from keysift.models.save import read_model_config
from keysift.nn.inference import Inference


@register_model("keysift")
class KeysiftLM(HFLM):  # type: ignore[misc]
    """`expand_windows` as in Inference; other arguments are passed to lm-eval's class."""

    def __init__(self, pretrained: str, expand_windows: bool = False, device: str | None = "cpu", **more: Any) -> None:
        model = AutoModelForCausalLM.from_pretrained(pretrained)
        model.inference = Inference(expand_windows=expand_windows)
        tokenizer = AutoTokenizer.from_pretrained(pretrained)
        super().__init__(pretrained=model.to(device), tokenizer=tokenizer, device=device, backend="causal", **more)


def known_tasks(include: Path | None) -> list[str]:
    """Names of all tasks, with those of the folder `include`."""
    names: list[str] = _manager(include).all_tasks
    return names


def _manager(include: Path | None) -> TaskManager:
    return TaskManager(include_path=None if include is None else str(include))


def evaluate(
    directory: str,
    tasks: tuple[str, ...],
    *,
    include: Path | None = None,
    fewshot: int | None = None,
    limit: int | None = None,
    batch: int = 8,
    expand_windows: bool = False,
) -> dict[str, Any]:
    """lm-eval's results by task: metrics with standard errors, and the version of the task."""
    read_model_config(Path(directory) / CONFIG)
    report = simple_evaluate(
        model=KeysiftLM(directory, expand_windows=expand_windows, batch_size=batch),
        tasks=list(tasks),
        num_fewshot=fewshot,
        limit=limit,
        task_manager=_manager(include),
        bootstrap_iters=1000,
    )
    results: dict[str, Any] = report["results"]
    return results

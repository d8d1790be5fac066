"""What a run shows while it trains: progress, experiment trackers, samples and head statistics, update angles."""

import importlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.progress import BarColumn
from torch import Tensor, nn

from keysift.core.config import to_dict
from keysift.core.disk import write_atomic, write_json
from keysift.core.errors import UnsupportedError
from keysift.core.progress import ProgressDisplay
from keysift.core.terminal import SafeTextColumn, escape_text
from keysift.evaluate.windows import head_statistics
from keysift.models.language_model import LanguageModel
from keysift.models.sampling_settings import Sampling
from keysift.models.text_model import TextModel
from keysift.runs.layout import HEADS, SAMPLES, checkpoint_name
from keysift.train.config import Tracker, TrainConfig
from keysift.train.distributed import full_tensor
from keysift.train.source import Source

MAX_INSPECTED_TOKENS = 512  # the attention weights of a layer are materialised to inspect its heads


class TrainingProgress:
    """Progress of one session, which ends after `steps` or `seconds`, whichever comes first."""

    def __init__(self, steps: int | None, seconds: float | None, *, show: bool) -> None:
        self._steps, self._seconds = steps, seconds
        self._began = time.monotonic()
        self._first: int | None = None
        columns = (SafeTextColumn("step {task.fields[step]}"), BarColumn(), SafeTextColumn("{task.description}"))
        self.live = ProgressDisplay(*columns, show=show)
        if self.live.bars is not None:
            self._task = self.live.bars.add_task("starting", total=1.0, step=0)

    def step(self, line: Mapping[str, Any]) -> None:
        """Show a line of the metrics."""
        now, step = time.monotonic(), line["step"]
        self._first = step if self._first is None else self._first
        fraction = self._fraction_done(step, now)
        elapsed = now - self._began
        left = elapsed * (1 - fraction) / fraction if fraction > 0 else 0.0
        accuracy = f"accuracy {line['accuracy']:.1%}  " if "accuracy" in line else ""
        text = (
            f"loss {line['loss']:.4f}  {accuracy}{line['tokens_per_second']:,.0f} tokens/s  "
            f"{format_duration(left)} left"
        )
        if self.live.bars is not None:
            self.live.bars.update(self._task, completed=fraction, description=text, step=step)
        self.live.print_periodically(f"step {step}  {text}", force=self._first == step)

    def _fraction_done(self, step: int, now: float) -> float:
        """Completed fraction of this session, by steps or by time, whichever ends first."""
        assert self._first is not None
        fractions = []
        if self._steps is not None:
            fractions.append((step - self._first + 1) / max(1, self._steps - self._first + 1))
        if self._seconds is not None:
            fractions.append((now - self._began) / self._seconds)
        return min(1.0, max(fractions))


def format_duration(seconds: float) -> str:
    """As h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class TrackerLog(Protocol):
    """The interface that trackio and wandb share."""

    def log(self, numbers: dict[str, Any], step: int) -> Any: ...
    def finish(self) -> Any: ...


class Trackers:
    """Sends metrics to experiment trackers. A tracker that fails is dropped with a warning."""

    def __init__(self, logs: Mapping[str, TrackerLog], warn: Callable[[str], None]) -> None:
        self._logs = dict(logs)
        self._warn = warn

    def log(self, line: Mapping[str, Any]) -> None:
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
        self._each(lambda log: log.log(numbers, step=line["step"]))

    def finish(self) -> None:
        self._each(lambda log: log.finish())

    def _each(self, call: Callable[[TrackerLog], Any]) -> None:
        for name, log in list(self._logs.items()):
            try:
                call(log)
            except Exception as error:  # each tracker has exceptions of its own, and none may stop training
                del self._logs[name]
                self._warn(f"warning: {name} failed ({error}) and gets no more metrics; metrics.jsonl has them all")


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def log(self, numbers: dict[str, Any], step: int) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def finish(self) -> None:
        self._writer.close()


def open_tracker(tracker: Tracker, folder: Path, settings: Mapping[str, Any]) -> TrackerLog:
    """Start a tracker. Raises UnsupportedError if it is not installed or does not start."""
    try:
        if tracker == "tensorboard":
            return _TensorBoard(folder)
        module = importlib.import_module(tracker)
    except ImportError as error:
        raise UnsupportedError(
            f"{tracker} is not installed ({error}); pip install 'keysift[{tracker}]', or drop --track"
        ) from error
    try:
        module.init(project="keysift", name=folder.name, config=dict(settings))
    except Exception as error:  # no network, no login, no disk: each tracker has exceptions of its own
        raise UnsupportedError(f"{tracker} does not start ({error}); set it up, or drop --track") from error
    log: TrackerLog = module
    return log


def sample(model: TextModel, prompt: str, tokens: int) -> str:
    """The prompt and its continuation. The seed is fixed: the same weights give the same text."""
    return prompt + model.generate(prompt, max_new_tokens=tokens, sampling=Sampling(temperature=0.7, seed=0))


def inspect_checkpoint(
    run: Path,
    model: LanguageModel,
    source: Source,
    tokens_1T: Tensor,
    config: TrainConfig,
    step: int,
    say: Callable[[str], None],
) -> None:
    """Write a sample and the statistics of each head. A failure is a warning: the checkpoint is already saved."""

    def write_sample() -> None:
        prompt = source.prompt if config.sample_prompt is None else config.sample_prompt
        if config.sample_tokens and prompt is not None:
            text = sample(TextModel(model, source.tokenizer), prompt, config.sample_tokens)
            (run / SAMPLES).mkdir(exist_ok=True)
            write_atomic(run / SAMPLES / f"{checkpoint_name(step)}.txt", text + "\n")
            say("\n".join(f"  | {line}" for line in escape_text(text).splitlines()))

    def write_heads() -> None:
        (run / HEADS).mkdir(exist_ok=True)
        statistics = [to_dict(head) for head in head_statistics(model, tokens_1T[:, :MAX_INSPECTED_TOKENS])]
        write_json(run / HEADS / f"{checkpoint_name(step)}.json", statistics)

    for name, write in (("sample", write_sample), ("head statistics", write_heads)):
        try:
            write()
        except Exception as error:  # whatever it was, the checkpoint is saved and training continues
            say(f"warning: writing the {name} of step {step} failed ({error}); the checkpoint is saved")


class UpdateAngles:
    """Norm of each matrix and the angle by which an optimizer step rotates it.

    The length of a matrix whose output is normalised has no effect, so a step matters by the direction it changes:
    the angle between the flattened matrix before and after. The same update rotates a longer matrix less. Values are
    averaged over layers, one number per kind of matrix.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._matrices = {name: parameter for name, parameter in parameters.items() if parameter.ndim == 2}
        self._before: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_step(self) -> None:
        self._before = {name: full_tensor(matrix.detach()).clone() for name, matrix in self._matrices.items()}

    @torch.no_grad()
    def after_step(self) -> dict[str, dict[str, float]]:
        """Frobenius norms, and angles in radians."""
        norms: dict[str, list[float]] = {}
        angles: dict[str, list[float]] = {}
        for name, matrix in self._matrices.items():
            after, before = full_tensor(matrix.detach()).double(), self._before[name].double()
            norms.setdefault(_matrix_kind(name), []).append(float(after.norm()))
            # The chord of two unit vectors is exact where an arc cosine would round a small angle to zero.
            chord = float((after / after.norm() - before / before.norm()).norm())
            angles.setdefault(_matrix_kind(name), []).append(2 * math.asin(min(1.0, chord / 2)))
        return {"norms": _means(norms), "angles": _means(angles)}


def _matrix_kind(name: str) -> str:
    """The parameter name without the number of its layer."""
    return ".".join(part for part in name.split(".") if not part.isdigit() and part != "layers")


def _means(groups: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: sum(values) / len(values) for name, values in groups.items()}

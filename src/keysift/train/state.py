"""Everything a run must remember: weights, the moments of AdamW, their average, the step."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor

from keysift.core.errors import TrainingError
from keysift.data.tokenizer import Tokenizer, save_tokenizer
from keysift.models.kinds import empty
from keysift.models.language import LanguageModel
from keysift.models.save import write_files
from keysift.runs import checkpoint
from keysift.runs.layout import name_of, steps
from keysift.train import shards
from keysift.train.config import TrainConfig
from keysift.train.distributed import Shared, World, whole
from keysift.train.optimizer import adamw, averages

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class State:
    shared: Shared
    optimizer: torch.optim.AdamW
    ema: dict[str, Tensor]
    step: int = 0
    best: float | None = None
    best_step: int | None = None
    seconds: float = 0.0  # of training, over all sessions
    stage: int = 0  # of a curriculum
    mastery: float = 0.0  # running accuracy in this stage
    rng: Tensor = field(default_factory=torch.get_rng_state)

    @classmethod
    def new(cls, shared: Shared, config: TrainConfig) -> "State":
        ema = averages(shared.parameters) if config.ema else {}
        return cls(shared, adamw(shared.parameters, config), ema)

    def _tensors(self) -> dict[str, Tensor]:
        found = {f"model.{name}": parameter.detach() for name, parameter in self.shared.parameters.items()}
        for name, parameter in self.shared.parameters.items():
            kept = self.optimizer.state[parameter]
            if not kept:
                kept["step"] = torch.tensor(float(self.step))
                kept.update({moment: torch.zeros_like(parameter.detach()) for moment in _MOMENTS})
            found.update({f"optimizer.{name}.{moment}": kept[moment] for moment in _MOMENTS})
        found.update({f"ema.{name}": tensor for name, tensor in self.ema.items()})
        return found

    def save(self, folder: Path, tokenizer: Tokenizer, model: LanguageModel) -> None:
        """Every process calls this; `model` is what `plain` returned."""
        world, step = self.shared.world, self.step
        # Every process holds the same of what is not sharded; the first one writes it.
        mine = {name: t for name, t in self._tensors().items() if world.first or isinstance(t, DTensor)}
        mine[f"rng.{world.rank}"] = torch.get_rng_state()
        progress = checkpoint.Progress(
            step=step,
            best=self.best,
            best_step=self.best_step,
            seconds=self.seconds,
            processes=world.size,
            stage=self.stage,
            mastery=self.mastery,
        )
        state = checkpoint.working(folder, step) / checkpoint.STATE
        with ExitStack() as stack:

            def begin() -> None:
                fresh = stack.enter_context(checkpoint.written(folder, progress))
                (fresh / checkpoint.STATE).mkdir()

            def finish() -> None:
                shards.write_index(state)
                write_files(model, state.parent)
                save_tokenizer(tokenizer, state.parent)
                stack.close()

            together(begin if world.first else _nothing, folder, step, world)
            together(lambda: shards.write_shard(state, mine, world.rank), folder, step, world)
            together(finish if world.first else _nothing, folder, step, world)

    def load(self, path: Path) -> None:
        """From a checkpoint of any number of processes."""
        folder = path / checkpoint.STATE
        index, tensors = shards.read_index(folder), self._tensors()
        mine = f"rng.{self.shared.world.rank}"
        if mine in index:
            tensors[mine] = self.rng.clone()
        shards.read(folder, index, tensors)
        if mine in tensors:
            torch.set_rng_state(tensors[mine])
        told = checkpoint.progress(path)
        self.step, self.best, self.best_step, self.seconds = told.step, told.best, told.best_step, told.seconds
        self.stage, self.mastery = told.stage, told.mastery
        for kept in self.optimizer.state.values():
            kept["step"].fill_(float(self.step))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The shared model with its averaged weights, if there are any, for the time of the block."""
        held = {name: self.shared.parameters[name].detach().clone() for name in self.ema}
        self.shared.set(self.ema)
        try:
            yield
        finally:
            self.shared.set(held)

    def plain(self) -> LanguageModel:
        """The whole model on the CPU, of averaged weights if there are any. Every process must ask; the first one
        gets it, the others a model without memory."""
        source: dict[str, Any] = self.ema or self.shared.parameters
        full = {}
        with torch.no_grad():
            for name, tensor in source.items():
                gathered = whole(tensor.detach())
                if self.shared.world.first:
                    full[name] = gathered.cpu()
        model = empty(self.shared.plain.config)
        model.load_state_dict(full, strict=False, assign=True)
        return model.eval()


def together(work: Callable[[], None], folder: Path, step: int, world: World) -> None:
    """Every process does its part of a save; all stop if one fails, so that none waits for ever."""
    failure = ""
    try:
        work()
    except (OSError, SafetensorError, RuntimeError) as error:
        failure = str(error)
    if world.any(bool(failure)):
        known = steps(folder)
        before = f"{name_of(known[-1])} is whole" if known else "no checkpoint was written yet"
        raise TrainingError(
            f"saving step {step} in {folder} failed ({failure or 'in another process'}); {before}; "
            f"make room or make it writable, then resume"
        )


def _nothing() -> None: ...

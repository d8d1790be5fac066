"""Everything a run must remember: weights, the moments of AdamW, their average, the step. Tensors by name, for DCP."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keysift.data.tokenizer import Tokenizer, save_tokenizer
from keysift.models import save as models
from keysift.models.language import LanguageModel
from keysift.train import checkpoint
from keysift.train.build import empty
from keysift.train.config import TrainConfig
from keysift.train.distributed import Shared, whole
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
    finished: bool = False
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

    def save(self, folder: Path, tokenizer: Tokenizer, model: LanguageModel) -> Path:
        """Every process calls this; `model` is what `plain` returned."""
        world = self.shared.world
        tensors = {**self._tensors(), f"rng.{world.rank}": torch.get_rng_state()}

        def write_model(path: Path) -> None:
            models.save(model, path / "model")
            save_tokenizer(tokenizer, path / "model")
            for file in (path / "model").iterdir():
                file.rename(path / file.name)
            (path / "model").rmdir()

        progress = {
            "best": self.best,
            "best_step": self.best_step,
            "seconds": self.seconds,
            "finished": self.finished,
            "processes": world.size,
        }
        return checkpoint.save(folder, self.step, tensors, progress, write_model, world)

    def load(self, path: Path) -> None:
        """From a checkpoint of any number of processes."""
        world = self.shared.world
        tensors = self._tensors()
        mine = f"rng.{world.rank}"
        if mine in checkpoint.stored_names(path):
            tensors[mine] = self.rng.clone()
        said = checkpoint.load(path, tensors, world)
        if mine in tensors:
            torch.set_rng_state(tensors[mine])
        self.step, self.best, self.best_step = said["step"], said["best"], said["best_step"]
        self.seconds = said["seconds"]
        for kept in self.optimizer.state.values():
            kept["step"].fill_(float(self.step))

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

"""Train a config and write the peak memory of its steps, in bytes: python -m tests.scale.measured_peak CONFIG RUN.

The peak counts from just before the model is wrapped, without the weights, which exist by then. A step of a tiny model
loads the code of torch before that. Freed tensors leave the process at once, as an allocator for GPUs would reuse them.
Linux only.
"""

import ctypes
import gc
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from keysift.data.batches import Batch
from keysift.models.language_model import count_parameters
from keysift.models.losses import batch_loss
from keysift.models.registry import build
from keysift.train import distributed, loop
from keysift.train.settings import read_toml

_distribute, _checkpoint = loop.distribute, loop.Session._checkpoint
_base = 0


def _status(name: str) -> int:
    return 1024 * int(re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


def _tiny_step(config: Any) -> None:
    """One step of a model of this architecture with a single narrow layer."""
    model = build(replace(config, depth=1, width=8 * getattr(config, "heads", 1), vocab_size=8))
    tokens = torch.zeros(1, 64, dtype=torch.long)
    batch_loss(model, Batch(inputs=tokens, targets=tokens, rows=(0,))).loss.backward()
    torch.optim.AdamW(model.parameters(), fused=True).step()


def _measured_distribute(model: Any, *arguments: Any) -> Any:
    global _base  # noqa: PLW0603
    _tiny_step(model.config)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _base = _status("VmRSS") - 4 * count_parameters(model)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    return _distribute(model, *arguments)


def _measured_checkpoint(self: Any, *arguments: Any, **options: Any) -> None:
    path = self.directory.path
    path.with_name(f"{path.name}.peak-{os.environ.get('RANK', '0')}").write_text(str(_status("VmHWM") - _base))
    _checkpoint(self, *arguments, **options)


if __name__ == "__main__":
    file, run = map(Path, sys.argv[1:])
    loop.distribute, loop.Session._checkpoint = _measured_distribute, _measured_checkpoint  # type: ignore[method-assign]
    distributed.keep_freed_memory = lambda: False
    ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD: freed tensors leave the process at once
    loop.train(read_toml(file), run, show=False)

"""What each mechanism costs through the dense definition, as a multiple of softmax on the same path."""

from functools import partial

import torch
from torch import Tensor

from keysift.bench.gather import Gathered, Say
from keysift.bench.record import Result
from keysift.bench.timing import Turns, interleave, row
from keysift.core.config import config
from keysift.kernels.attend import attend
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism
from keysift.runs import machine


@config
class Sizes:
    tokens: int = 256
    heads: int = 8
    width: int = 32
    rounds: int = 15


FULL = Sizes()
QUICK = Sizes(rounds=3)


def measure(sizes: Sizes, *, command: str, say: Say) -> Result:
    found = Gathered(machine.examine(), say)
    softmax = MECHANISMS.find("softmax")
    for mechanism in MECHANISMS:
        if strays(mechanism, sizes):
            found.notes.append(f"{mechanism.name}: not timed, fp32 strays from fp64")
            continue
        say(mechanism.name)
        turns: Turns = {"ours": partial(run, mechanism, sizes), "softmax": partial(run, softmax, sizes)}
        taken = interleave(turns, sizes.rounds)
        setting = f"{sizes.heads} heads of {sizes.width}, dense"
        timed = row(
            mechanism.name,
            "forward + backward",
            sizes.tokens,
            taken["ours"],
            setting=setting,
            against="softmax",
            theirs=taken["softmax"],
        )
        found.rows.append(timed)
    return found.result("mechanisms", command)


def inputs(mechanism: Mechanism, sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    heads = (sizes.heads * mechanism.maps, sizes.heads * mechanism.key_maps, sizes.heads)
    shapes = [(1, each, sizes.tokens, sizes.width) for each in heads]
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    )


def run(mechanism: Mechanism, sizes: Sizes) -> None:
    out = attend(mechanism, *inputs(mechanism, sizes, torch.float32), backend="dense")
    torch.autograd.backward(out.sum())


def strays(mechanism: Mechanism, sizes: Sizes) -> bool:
    single = attend(mechanism, *inputs(mechanism, sizes, torch.float32), backend="dense")
    double = attend(mechanism, *inputs(mechanism, sizes, torch.float64), backend="dense")
    return bool((single - double).abs().max() > 1e-3 * double.abs().max())

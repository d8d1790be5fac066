"""The kernels compile for real devices: without spills, with tensor-core instructions, within shared memory.

`docs/results/gpu.json` has the figures of every configuration, and docs/performance-gpu.md shows them.
"""

import re
from itertools import product

import pytest
import torch

from keysift.kernels.gpu import binaries
from keysift.kernels.gpu.binaries import TARGETS
from keysift.kernels.gpu.configurations import WIDTHS

# Products per block of pairs: q k and weights v; backward also dout v, and one or two for gradients.
FEWEST_MATRIX = 2
# Configurations that keep some values in local memory, with the bytes per thread. May only shrink. fp32 needs three
# products of TF32 numbers for each, with both parts of every operand in registers.
SPILLS: dict[tuple[str, str, tuple[int, int]], dict[str, int]] = {
    ("float32", "screening backward keys", (16, 64)): {"sm_80": 160, "sm_90": 256},
    ("float32", "screening backward keys", (64, 64)): {"sm_80": 32},
    ("float32", "screening backward queries", (128, 128)): {"sm_80": 160, "sm_90": 184},
    ("float32", "screening backward keys", (128, 128)): {"sm_80": 192, "sm_90": 288, "gfx942": 16},
    ("float32", "screening split forward", (128, 256)): {"sm_80": 8, "sm_90": 32},
    ("float32", "screening backward queries", (128, 256)): {"sm_80": 768, "sm_90": 736},
    ("float32", "screening backward keys", (128, 256)): {"sm_80": 3880, "sm_90": 992, "gfx942": 272},
    ("float32", "sums backward queries", (128, 256)): {"sm_80": 72, "sm_90": 96},
    ("float32", "sums backward keys", (128, 256)): {"sm_80": 264, "sm_90": 336, "gfx942": 68},
    ("float32", "sums forward", (128, 128)): {"sm_90": 16},
}
KERNELS = (
    *("screening forward", "screening split forward", "screening backward queries", "screening backward keys"),
    *("sums forward", "sums backward queries", "sums backward keys"),
)
ROWS = ("lengths", "rotated keys", "combine", "prepare")
# What 32-bit offsets may be: channels, numbers of heads and constants. What a stride or a length multiplies is int64.
NARROW = {"tt.make_range", "tt.get_program_id", "arith.constant"}


def _quick(device: str, dtype: str, pads: tuple[int, int], kernel: str) -> bool:
    return (device, dtype, pads) == ("sm_80", "bfloat16", WIDTHS[0]) and kernel in KERNELS[:2]


ALL = [
    pytest.param(*case, marks=[] if _quick(*case) else [pytest.mark.slow], id=" ".join(map(str, case)))
    for case in product(("sm_80", "sm_90", "gfx942"), ("bfloat16", "float32"), WIDTHS, KERNELS)
]
NEWEST = [pytest.param("sm_100", "bfloat16", WIDTHS[0], kernel, marks=pytest.mark.slow) for kernel in KERNELS]
HALF = [pytest.param("sm_80", "float16", WIDTHS[0], kernel, marks=pytest.mark.slow) for kernel in KERNELS]


_NAME = r"%[\w.#]+"


def narrow_offsets(ttir: str) -> set[str]:
    """What the 32-bit offsets of addresses are: operations of Triton's intermediate code."""
    operations = dict(re.findall(rf"({_NAME})(?::\d+)? = (.*)", ttir))
    found = set()
    for name, kind in re.findall(rf"tt\.addptr {_NAME}, ({_NAME}) : \S+, (\S+)", ttir):
        operation = operations.get(name, "an argument")
        while operation.startswith(("tt.splat", "tt.expand_dims", "tt.broadcast")):
            operation = operations.get(re.findall(_NAME, operation)[0], "an argument")
        if "i64" not in kind:
            found.add(operation.split()[0])
    return found


@pytest.mark.parametrize(("device", "dtype", "pads", "kernel"), [*ALL, *NEWEST, *HALF])
def test_compiles(device: str, dtype: str, pads: tuple[int, int], kernel: str) -> None:
    target = TARGETS[device]
    launch = binaries.launches(getattr(torch, dtype), *pads, target.precision)[kernel]
    compiled = binaries.compile_launch(launch, target)
    assert narrow_offsets(compiled.asm["ttir"]) <= NARROW
    binary = binaries.examine(compiled, target)
    assert binary.local_bytes <= SPILLS.get((dtype, kernel, pads), {}).get(device, 0)
    assert binary.matrix >= FEWEST_MATRIX
    assert binary.shared_bytes <= target.shared_bytes


def test_all_kernels_are_known() -> None:
    """Decode splits the keys over programs, which write partial sums."""
    launches = binaries.all_launches(torch.bfloat16, *WIDTHS[0], "tf32x3")
    assert {*launches} == {*KERNELS, *(f"screening {name}" for name in ROWS)}
    assert {*binaries.launches(torch.bfloat16, *WIDTHS[0], "tf32x3")} == {*KERNELS}
    for kernel, splits in (("screening forward", False), ("screening split forward", True)):
        names = launches[kernel].kernel.arg_names
        assert (launches[kernel].arguments[names.index("partial")] is not None) == splits


@pytest.mark.slow
@pytest.mark.parametrize("device", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("kernel", ROWS)
def test_kernels_of_rows_compile(device: str, kernel: str) -> None:
    """The kernels that read each row once, in the widest configuration."""
    target = TARGETS[device]
    launch = binaries.all_launches(torch.bfloat16, *WIDTHS[-1], target.precision)[f"screening {kernel}"]
    compiled = binaries.compile_launch(launch, target)
    assert narrow_offsets(compiled.asm["ttir"]) <= NARROW
    assert binaries.examine(compiled, target).local_bytes == 0


@pytest.mark.slow
def test_spills_are_noticed() -> None:
    """A kernel that holds more than a thread's registers is reported as spilling."""
    target = TARGETS["sm_80"]
    launch = binaries.launches(torch.bfloat16, *WIDTHS[0], target.precision)["screening forward"]
    assert launch.config is not None
    shape = launch.arguments[-1]
    wide = shape._replace(M=type(shape.M)(128), N=type(shape.N)(128))
    too_large = launch._replace(arguments=(*launch.arguments[:-1], wide), config=launch.config._replace(warps=2))
    assert binaries.examine(binaries.compile_launch(too_large, target), target).local_bytes > 0


def test_lengths_are_not_constants() -> None:
    """One binary serves every length: another length has the same signature and constants."""
    launches = binaries.launches(torch.bfloat16, *WIDTHS[0], "tf32x3")
    for launch in launches.values():
        names = launch.kernel.arg_names
        for name in ("queries", "keys", "offset", "per_row"):
            assert name in launch.kernel.do_not_specialize
            assert not launch.kernel.params[names.index(name)].is_constexpr

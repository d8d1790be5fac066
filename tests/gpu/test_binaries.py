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
PRODUCTS = {"forward": 2, "backward queries": 3, "backward keys": 4}
KERNELS = (
    *("screening forward", "screening split forward", "screening backward queries", "screening backward keys"),
    *("sums forward", "sums backward queries", "sums backward keys"),
)
ROWS = ("lengths", "rotated keys", "combine", "prepare")
# What 32-bit offsets may be: channels, numbers of heads and constants. What a stride or a length multiplies is int64.
NARROW = {"tt.make_range", "tt.get_program_id x", "tt.get_program_id y", "arith.constant"}


def _quick(device: str, dtype: str, pads: tuple[int, int], kernel: str) -> bool:
    return (device, dtype, pads) == ("sm_80", "bfloat16", WIDTHS[0]) and kernel in KERNELS[:2]


ALL = [
    pytest.param(*case, marks=[] if _quick(*case) else [pytest.mark.slow], id=" ".join(map(str, case)))
    for case in product(TARGETS, ("bfloat16", "float32"), WIDTHS, KERNELS)
]
HALF = [pytest.param("sm_80", "float16", WIDTHS[0], kernel, marks=pytest.mark.slow) for kernel in KERNELS]


_NAME = r"%[\w.#]+"


def check_integers(ttir: str) -> None:
    """Addresses have 64-bit offsets, and no 32-bit product can exceed 2^31: one factor is a constant of the kernel
    (number of a block by its size), or the number of a split by its keys."""
    operations = dict(re.findall(rf"({_NAME})(?::\d+)? = (.*)", ttir))
    for variable, stop in re.findall(rf"scf\.for ({_NAME}) = {_NAME} to ({_NAME}) ", ttir):
        operations[variable] = operations.get(stop, "an argument")  # no larger than a constant, if that is one

    def sources(name: str) -> set[str]:
        operation: str = operations.get(name, "an argument")
        if operation.startswith(("tt.splat", "tt.expand_dims", "tt.broadcast", "arith.addi")):
            return {leaf for factor in re.findall(_NAME, operation.split(":")[0]) for leaf in sources(factor)}
        return {" ".join(operation.split()[:2]) if operation.startswith("tt.get") else operation.split()[0]}

    offsets = re.findall(rf"tt\.addptr {_NAME}, ({_NAME}) : \S+, (\S+)", ttir)
    assert offsets
    assert {leaf for name, kind in offsets if "i64" not in kind for leaf in sources(name)} <= NARROW
    for factors in re.findall(rf"arith\.muli ({_NAME}), ({_NAME}).* : (?:i32|tensor<\S*xi32>)", ttir):
        assert any(sources(name) <= {"arith.constant", "tt.get_program_id z"} for name in factors)


def check_matrix(ttgir: str, products: int) -> None:
    """At least this many products of matrices, all by tensor cores: others have a layout that is not of their kind."""
    layouts = re.findall(r"(?:tt\.dot|ttng\.warp_group_dot) .*-> tensor<\S+, #(\w+)>", ttgir)
    newest = ttgir.count("ttng.tc_gen5_mma ")
    assert len(layouts) + newest >= products
    assert all("mma" in layout for layout in layouts)


@pytest.mark.parametrize(("device", "dtype", "pads", "kernel"), [*ALL, *HALF])
def test_compiles(device: str, dtype: str, pads: tuple[int, int], kernel: str) -> None:
    target = TARGETS[device]
    launch = binaries.launches(getattr(torch, dtype), *pads, target.precision)[kernel]
    compiled = binaries.compile_launch(launch, target)
    check_integers(compiled.asm["ttir"])
    binary = binaries.examine(compiled, target)
    assert binary.local_bytes == 0
    assert binary.matrix > 0
    products = next(count for name, count in PRODUCTS.items() if kernel.endswith(name))
    parts = 3 if dtype == "float32" and target.precision == "tf32x3" else 1
    check_matrix(compiled.asm["ttgir"], parts * products)
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
    check_integers(compiled.asm["ttir"])
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

"""Cross-compilation of the kernels for devices that this machine does not have, and what their binaries contain.

A launcher runs on empty CPU tensors with `device.launch` replaced by a recorder, so that a kernel is compiled with the
types, constants and alignments of a real launch. Imports triton.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from keysift.kernels.gpu import device
from keysift.kernels.gpu.configurations import Configuration

_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float64: "*fp64",
    torch.int64: "*i64",
}


class Target(NamedTuple):
    """A device to compile for, and the shared memory that one program may use there."""

    name: str
    target: GPUTarget
    shared_bytes: int
    precision: str


TARGETS = {
    "sm_80": Target("A100", GPUTarget("cuda", 80, 32), 163 * 1024, "tf32x3"),
    "sm_90": Target("H100", GPUTarget("cuda", 90, 32), 227 * 1024, "tf32x3"),
    "sm_100": Target("B200", GPUTarget("cuda", 100, 32), 227 * 1024, "tf32x3"),
    "gfx942": Target("MI300", GPUTarget("hip", "gfx942", 64), 64 * 1024, "ieee"),
}


class Launch(NamedTuple):
    """A recorded launch."""

    kernel: Any
    arguments: tuple[Any, ...]
    config: Configuration | None


class Binary(NamedTuple):
    """What a compiled kernel uses per thread (registers, bytes of local memory) and per program (shared memory).

    matrix        tensor-core instructions in its code: HMMA, HGMMA, UTCMMA or MFMA
    instructions  all instructions in its code
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    matrix: int
    instructions: int


@contextmanager
def recorded(precision: str) -> Iterator[list[Launch]]:
    """Record launches instead of running them, as on a device with this precision."""
    launches: list[Launch] = []

    def record(
        kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], config: Configuration | None = None
    ) -> None:
        launches.append(Launch(kernel, arguments, config))

    before = device.launch, device.precision
    device.launch, device.precision = record, lambda x: precision
    try:
        yield launches
    finally:
        device.launch, device.precision = before


def launches(dtype: torch.dtype, pad_k: int, pad_v: int, precision: str) -> dict[str, Launch]:
    """Every kernel that reads pairs of queries and keys, by name, as launched for these widths with two query heads per
    key head and packed documents."""
    from keysift.kernels.cpu.sums import Inputs
    from keysift.kernels.gpu import screening_launch, sums_launch
    from keysift.kernels.gpu.arguments import Saved

    q, k, v = (torch.empty(1, heads, 64, width, dtype=dtype) for heads, width in ((2, pad_k), (1, pad_k), (1, pad_v)))
    u, norm, scalars = torch.empty(1, 2, 64, pad_v, dtype=dtype), torch.empty(1, 2, 64), torch.empty(2)
    segments = torch.tensor([[0, 0, 64, 0, 64, 0]])
    problem = screening_launch.Problem(q, k, v, scalars, scalars, scalars, 256.0, segments, 0, True, True)
    saved = Saved(norm, None if dtype == torch.float32 else torch.empty(1, 2, 64, pad_v))
    sums = Inputs(q, k, v, norm, segments, 0, 0, 5, 1.0, 1e-8)  # Softpick, the kind with the most instructions
    found = {}
    with recorded(precision) as calls:
        for processors, name in ((0, "forward"), (64, "split forward")):
            screening_launch.forward(problem, u, saved, processors)
            found[f"screening {name}"] = next(call for call in calls if call.kernel.fn.__name__ == "forward")
            calls.clear()
        screening_launch.backward(problem, u, u, saved, screening_launch.Gradients(q, k, v))
        found |= {f"screening {_name(call)}": call for call in calls if "backward" in _name(call)}
        calls.clear()
        sums_launch.backward(torch.empty(1, 2, 64, pad_v), *sums_launch.forward(sums), sums)
        found |= {f"sums {_name(call)}": call for call in calls}
    return found


def _name(launch: Launch) -> str:
    name: str = launch.kernel.fn.__name__
    return name.replace("_", " ")


def compile_launch(launch: Launch, target: Target) -> Any:
    """The compiled kernel of a launch."""
    kernel = launch.kernel
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    signature = {}
    plain = set(kernel.do_not_specialize)
    for number, (name, argument) in enumerate(zip(kernel.arg_names, launch.arguments, strict=True)):
        annotated = kernel.params[number].is_constexpr
        signature[name] = _type(
            argument, (number,), constants, attributes, specialise=name not in plain, fixed=annotated
        )
    options: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
    if launch.config is not None:
        options |= {"num_warps": launch.config.warps, "num_stages": launch.config.stages}
    return triton.compile(ASTSource(kernel, signature, constants, attributes), target=target.target, options=options)


def _type(
    argument: Any,
    path: tuple[int, ...],
    constants: dict[tuple[int, ...], Any],
    attributes: dict[tuple[int, ...], list[list[Any]]],
    *,
    specialise: bool,
    fixed: bool = False,
) -> Any:
    """Triton's type of an argument, with the specialisation that a launch would apply."""
    if isinstance(argument, tuple):
        fields = (
            _type(field, (*path, number), constants, attributes, specialise=specialise)
            for number, field in enumerate(argument)
        )
        return type(argument)(*fields)
    if isinstance(argument, Tensor):
        attributes[path] = [["tt.divisibility", 16]]
        return _TYPES[argument.dtype]
    if isinstance(argument, tl.constexpr) or argument is None or fixed or (specialise and argument == 1):
        constants[path] = argument.value if isinstance(argument, tl.constexpr) else argument
        return "constexpr"
    if isinstance(argument, float):
        return "fp32"
    if specialise and argument % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    return "i32"


def examine(compiled: Any, target: Target) -> Binary:
    """Resources and instructions of a compiled kernel, read from its binary."""
    read = _read_amdgcn if target.target.backend == "hip" else _read_cubin
    return read(compiled)


def _read_cubin(compiled: Any) -> Binary:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _run(triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name)
        code = _run(triton.knobs.nvidia.nvdisasm.path, "-c", file.name)
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", usage)}
    operations = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", code, re.MULTILINE)
    spills = sum(operation.startswith(("LDL", "STL")) for operation in operations)
    return Binary(
        registers=numbers["REG"],
        local_bytes=max(numbers["LOCAL"], numbers["STACK"], spills),
        shared_bytes=compiled.metadata.shared,
        matrix=sum(operation.startswith(("HMMA", "HGMMA", "UTCHMMA", "UTCMMA")) for operation in operations),
        instructions=len(operations),
    )


def _read_amdgcn(compiled: Any) -> Binary:
    code = compiled.asm["amdgcn"]
    value: Callable[[str], int] = lambda name: int(re.findall(rf"{name}:?\s+(\d+)", code)[-1])  # noqa: E731
    operations = re.findall(r"^\t([a-z]\w+)", code, re.MULTILINE)
    return Binary(
        registers=value(r"\.vgpr_count"),
        local_bytes=max(value(r"\.private_segment_fixed_size"), value(r"\.vgpr_spill_count")),
        shared_bytes=compiled.metadata.shared,
        matrix=sum(operation.startswith("v_mfma") for operation in operations),
        instructions=len(operations),
    )


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

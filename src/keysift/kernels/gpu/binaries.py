"""Cross-compilation of the kernels for devices that this machine does not have, and what their binaries contain.

A launcher runs on empty CPU tensors with `device.launch` replaced by a recorder. Then Triton's own launch code compiles
the kernel for these arguments, with a driver that names the device. Imports triton.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from keysift.kernels.gpu import device
from keysift.kernels.gpu.configurations import Configuration


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
    calls = all_launches(dtype, pad_k, pad_v, precision)
    return {name: launch for name, launch in calls.items() if launch.config is not None}


def all_launches(dtype: torch.dtype, pad_k: int, pad_v: int, precision: str) -> dict[str, Launch]:
    """The same, and the kernels that read each row once."""
    from keysift.kernels.cpu.sums import Inputs
    from keysift.kernels.gpu import screening_launch, sums_launch
    from keysift.kernels.gpu.arguments import Saved

    sizes = ((2, 64, pad_k), (1, 256, pad_k), (1, 256, pad_v))
    q, k, v = (torch.empty(1, heads, tokens, width, dtype=dtype) for heads, tokens, width in sizes)
    u, norm, scalars = torch.empty(1, 2, 64, pad_v, dtype=dtype), torch.empty(1, 2, 64), torch.empty(2)
    segments = torch.tensor([[0, 0, 64, 0, 256, 192]])
    problem = screening_launch.Problem(q, k, v, scalars, scalars, scalars, 256.0, segments, 0, True, True)
    saved = Saved(norm, None if dtype == torch.float32 else torch.empty(1, 2, 64, pad_v))
    sums = Inputs(q, k, v, norm, segments, 0, 0, 5, 1.0, 1e-8)  # Softpick, the kind with the most instructions
    found: dict[str, Launch] = {}
    with recorded(precision) as calls:
        for processors, name in (
            (0, "screening "),
            (64, "screening split "),
        ):  # the latter splits the keys over programs
            screening_launch.forward(problem, u, saved, processors)
            found |= {f"{name if call.config else 'screening '}{_name(call)}": call for call in calls}
            calls.clear()
        screening_launch.backward(problem, u, u, saved, screening_launch.Gradients(q, k, v))
        found |= {f"screening {_name(call)}": call for call in calls}
        calls.clear()
        sums_launch.backward(torch.empty(1, 2, 64, pad_v), *sums_launch.forward(sums), sums)
        found |= {f"sums {_name(call)}": call for call in calls}
    return found


def _name(launch: Launch) -> str:
    name: str = launch.kernel.fn.__name__
    return name.replace("_", " ")


class _Driver:
    """What Triton asks of a device's driver before it compiles. Kernels are cached by the name of the device."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target.target

    def get_current_device(self) -> str:
        return self.target.name

    def get_current_stream(self, device: str) -> int:
        return 0


@contextmanager
def _device(target: Target) -> Iterator[None]:
    """Triton believes that this device is in the machine."""
    before = driver._active  # None until Triton has used a device
    driver.set_active(_Driver(target))
    try:
        yield
    finally:
        driver.set_active(before)


def compile_launch(launch: Launch, target: Target) -> Any:
    """The compiled kernel of a launch. Triton derives types, constants and alignments as it does on the device."""
    with _device(target):
        return launch.kernel.warmup(*launch.arguments, grid=(1,), **device.options(launch.config))


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

"""The compiled library: finding it, loading it, and the C structures of csrc/{screening,sums,thresholds}.h.

Loaded when first asked for. torch's own thread pool is handed over, so the two never compete for cores.
"""

import ctypes
import os
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keysift.core.errors import UnsupportedError

LIBRARY = Path(__file__).parent.parent / "native" / "libkeysift_cpu.so"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NO_ROTATION, NO_TANH = 1, 2
ISA_NOT_HERE, ISA_UNKNOWN = 1, 2


class View(ctypes.Structure):
    """A B H T W tensor whose last axis is contiguous."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("tile_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
    ]

    @classmethod
    def of(cls, x: Tensor) -> "View":
        return cls(x.data_ptr(), *x.stride()[:3])


class Piece(ctypes.Structure):
    """A run of queries of one row and the keys they may see, as a row of `Positions.pieces`."""

    _fields_ = [(name, ctypes.c_int64) for name in ("row", "query", "queries", "key", "keys", "offset")]


class Problem(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int64) for n in ("batch", "tiles", "kv_tiles", "queries", "keys", "key_width", "value_width")),
        ("dtype", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        *((name, View) for name in ("q", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("ring", "ring_first", "pieces")),
        ("piece_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("window", "reach", "acceptance")),
        ("w_th", ctypes.c_float),
    ]


class Gradients(ctypes.Structure):
    _fields_ = [
        *((name, View) for name in ("dq", "dk", "dv")),
        *((name, ctypes.c_void_p) for name in ("dwindow", "dreach", "dacceptance")),
    ]


class SumsProblem(ctypes.Structure):
    """As in csrc/sums.h."""

    _fields_ = [
        *((n, ctypes.c_int64) for n in ("batch", "heads", "queries", "keys", "key_width", "value_width")),
        ("kind", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("rest", ctypes.c_float),
        *((name, View) for name in ("q", "k", "v")),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("shift", ctypes.c_void_p),
    ]


class SumsGradients(ctypes.Structure):
    _fields_ = [*((name, View) for name in ("dq", "dk", "dv")), ("dshift", ctypes.c_void_p)]


class ThresholdRows(ctypes.Structure):
    """As in csrc/thresholds.h."""

    _fields_ = [*((name, ctypes.c_int64) for name in ("matrices", "rows", "keys", "seen")), ("orders", ctypes.c_void_p)]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "keysift_view": View,
    "keysift_piece": Piece,
    "keysift_problem": Problem,
    "keysift_gradients": Gradients,
    "keysift_sums_problem": SumsProblem,
    "keysift_sums_gradients": SumsGradients,
    "keysift_threshold_rows": ThresholdRows,
}
FUNCTIONS = {
    "keysift_layout": ctypes.c_char_p,
    "keysift_isa": ctypes.c_char_p,
    "keysift_isas": ctypes.c_char_p,
    "keysift_isa_status": ctypes.c_int,
    "keysift_last_error": ctypes.c_char_p,
    "keysift_set_threads": None,
    "keysift_forward": ctypes.c_int,
    "keysift_backward": ctypes.c_int,
    "keysift_sums_forward": ctypes.c_int,
    "keysift_sums_backward": ctypes.c_int,
    "keysift_threshold_weigh": ctypes.c_int,
    "keysift_threshold_differentiate": ctypes.c_int,
}


class Code(Enum):
    """Why the library cannot run here, for programs; a `Reason` adds the sentence for people."""

    NOT_BUILT = "not built"
    DOES_NOT_LOAD = "does not load"
    STALE = "stale"
    ISA_UNKNOWN = "unknown instruction set"
    ISA_NOT_HERE = "instruction set not on this machine"


@dataclass(frozen=True)
class Reason:
    code: Code
    text: str

    def __str__(self) -> str:
        return self.text


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # compiling must not look at files
def unusable() -> Reason | None:
    """Why the library cannot run here, or None. Found out once for each path; later calls look nothing up."""
    found = _load(LIBRARY)
    return found if isinstance(found, Reason) else None


def library() -> Any:
    found = _load(LIBRARY)
    if isinstance(found, Reason):
        raise UnsupportedError(f"{found}; leave backend='auto' to compute in plain torch")
    return found


@cache
def _load(path: Path) -> Any:
    """The library, or the Reason why there is none."""
    if not path.exists():
        return Reason(
            Code.NOT_BUILT,
            "the compiled kernel was not built (no C++ compiler when keysift was installed): plain torch runs instead, "
            "many times slower for screening; install a compiler and reinstall keysift",
        )
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return Reason(Code.DOES_NOT_LOAD, f"the compiled kernel does not load: {error}; reinstall keysift")
    refused = _stale(loaded, path) or _wrong_isa(loaded)
    if refused is not None:
        return refused
    _share_threads(loaded)
    return loaded


def _stale(loaded: Any, path: Path) -> Reason | None:
    """A library built from other sources would read our structures wrongly, so it says what it was built with."""
    missing = next((name for name in FUNCTIONS if not hasattr(loaded, name)), None)
    if missing is not None:
        return Reason(Code.STALE, f"{path.name} is stale: it has no {missing}; reinstall keysift")
    for name, returns in FUNCTIONS.items():
        getattr(loaded, name).restype = returns
    built = loaded.keysift_layout().decode().splitlines()
    if built == layout():
        return None
    differing = [f"{theirs!r} for {ours!r}" for theirs, ours in zip(built, layout(), strict=False) if theirs != ours]
    said = "; ".join(differing) or f"{len(built)} structures for {len(layout())}"
    return Reason(Code.STALE, f"{path.name} is stale: it was built with {said}; reinstall keysift")


def layout() -> list[str]:
    """Size and offsets of every structure, one line each, as keysift_layout() of csrc/screening.cpp writes them."""
    return [
        f"{name} {ctypes.sizeof(shape)}:"
        + "".join(f" {field[0]} {getattr(shape, field[0]).offset}" for field in shape._fields_)
        for name, shape in STRUCTURES.items()
    ]


def _wrong_isa(loaded: Any) -> Reason | None:
    asked = os.environ.get("KEYSIFT_ISA", "")
    status = loaded.keysift_isa_status(asked.encode())
    runs = ", ".join(loaded.keysift_isas().decode().split())
    if status == ISA_UNKNOWN:
        return Reason(
            Code.ISA_UNKNOWN, f"KEYSIFT_ISA={asked} names no instruction set; unset it, or say one of: {runs}"
        )
    if status == ISA_NOT_HERE:
        return Reason(
            Code.ISA_NOT_HERE, f"KEYSIFT_ISA={asked} cannot run on this machine; unset it, or say one of: {runs}"
        )
    return None


def _share_threads(loaded: Any) -> None:
    try:
        pool = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        addresses = [ctypes.cast(f, ctypes.c_void_p) for f in (pool.torch_parallel_for, pool.torch_get_num_threads)]
    except (OSError, AttributeError):
        # A torch that does not export its pool: the library starts threads of its own.
        loaded.keysift_set_threads(None, None, ctypes.c_int64(torch.get_num_threads()))
        return
    loaded.keysift_set_threads(*addresses, ctypes.c_int64(0))


def instruction_set() -> str | None:
    """Which variant runs here: avx512, avx2 or plain."""
    return None if unusable() is not None else str(library().keysift_isa().decode())


def instruction_sets() -> list[str]:
    """Every variant that was built and runs on this machine, best first."""
    return [] if unusable() is not None else library().keysift_isas().decode().split()


def check(status: int) -> None:
    if status != 0:
        said = library().keysift_last_error().decode()
        raise UnsupportedError(f"the compiled kernel refused the call: {said}; backend='dense' states the definition")


def pointer(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())

"""The compiled library: finding it, loading it, and the C structures of csrc/screening.h.

Loaded when first asked for. torch's own thread pool is handed over, so the two never compete for cores.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARY = Path(__file__).parent.parent / "native" / "libkeysift_cpu.so"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NO_ROTATION, NO_TANH = 1, 2


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


class Problem(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int64) for n in ("batch", "tiles", "kv_tiles", "queries", "keys", "key_width", "value_width")),
        ("dtype", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        *((name, View) for name in ("q", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("q_at", "k_at", "k_begin", "window", "reach", "acceptance")),
        ("w_th", ctypes.c_float),
    ]


class Gradients(ctypes.Structure):
    _fields_ = [
        *((name, View) for name in ("dq", "dk", "dv")),
        *((name, ctypes.c_void_p) for name in ("dwindow", "dreach", "dacceptance")),
    ]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # compiling must not look at files
def unusable() -> str | None:
    """Why the library cannot run here, or None."""
    if not LIBRARY.exists():
        return (
            "the compiled kernel was not built (no C++ compiler when keysift was installed): screening runs in plain "
            "torch, many times slower; install a compiler and reinstall keysift"
        )
    return _load()[1]


def library() -> Any:
    loaded, reason = _load()
    assert loaded is not None, reason
    return loaded


@cache
def _load() -> tuple[Any, str | None]:
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, f"the compiled kernel does not load: {error}"
    loaded.keysift_isa.restype = ctypes.c_char_p
    loaded.keysift_last_error.restype = ctypes.c_char_p
    if loaded.keysift_isa() is None:
        asked = os.environ.get("KEYSIFT_ISA")
        return (
            None,
            f"KEYSIFT_ISA={asked} names no variant this machine can run; unset it, or say avx512, avx2 or plain",
        )
    _share_threads(loaded)
    return loaded, None


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
    return None if unusable() else str(library().keysift_isa().decode())


def check(status: int) -> None:
    assert status == 0, f"the compiled kernel failed: {library().keysift_last_error().decode()}"


def pointer(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())

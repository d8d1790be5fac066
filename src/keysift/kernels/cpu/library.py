"""The compiled library: finding it, loading it, and the C structures of the headers in csrc.

The library is loaded on first use. It runs on torch's thread pool, so the two never compete for cores.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keysift.core.errors import UnsupportedError
from keysift.kernels.backend import Code, Unavailable

LIBRARY = Path(__file__).parents[2] / "native" / "libkeysift_cpu.so"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NO_ROTATION, NO_TANH, FINITE_VALUES = 1, 2, 4
OK, STALE = 0, 5
ISA_NOT_HERE, ISA_UNKNOWN = 1, 2


class View(ctypes.Structure):
    """keysift_view of csrc/screening.h: a B H T W tensor whose last axis is contiguous."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("tile_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
    ]

    @classmethod
    def of(cls, x: Tensor) -> "View":
        return cls(x.data_ptr(), *x.stride()[:3])


class Segment(ctypes.Structure):
    """Consecutive queries of one row and the keys they may see: a row of `Positions.segments`."""

    _fields_ = [(name, ctypes.c_int64) for name in ("row", "query", "queries", "key", "keys", "offset")]


class Problem(ctypes.Structure):
    """keysift_problem of csrc/screening.h."""

    _fields_ = [
        *((n, ctypes.c_int64) for n in ("batch", "tiles", "kv_tiles", "queries", "keys", "key_width", "value_width")),
        ("dtype", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        *((name, View) for name in ("q", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("ring", "ring_first", "segments")),
        ("segment_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("window", "effective_window", "acceptance")),
        ("w_th", ctypes.c_float),
        ("groups", ctypes.c_void_p),
    ]


class Gradients(ctypes.Structure):
    """keysift_gradients of csrc/screening.h."""

    _fields_ = [
        *((name, View) for name in ("dq", "dk", "dv")),
        *((name, ctypes.c_void_p) for name in ("dwindow", "deffective_window", "dacceptance")),
    ]


class Gate(ctypes.Structure):
    """keysift_gate of csrc/tile.h."""

    _fields_ = [("g", View), ("scale", ctypes.c_void_p)]


class GateGradients(ctypes.Structure):
    """keysift_gate_gradients of csrc/tile.h."""

    _fields_ = [("dg", View), ("dscale", ctypes.c_void_p)]


class SumsProblem(ctypes.Structure):
    """keysift_sums_problem of csrc/sums.h."""

    _fields_ = [
        *((n, ctypes.c_int64) for n in ("batch", "heads", "queries", "keys", "key_width", "value_width", "window")),
        ("kind", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
        *((name, View) for name in ("q", "k", "v")),
        ("segments", ctypes.c_void_p),
        ("segment_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("shift", "decay", "first_key")),
    ]


class SumsGradients(ctypes.Structure):
    """keysift_sums_gradients of csrc/sums.h."""

    _fields_ = [
        *((name, View) for name in ("dq", "dk", "dv")),
        *((name, ctypes.c_void_p) for name in ("dshift", "dkeys")),
    ]


class SticksProblem(ctypes.Structure):
    """keysift_sticks_problem of csrc/sticks.h."""

    _fields_ = [
        *((n, ctypes.c_int64) for n in ("batch", "heads", "queries", "keys", "key_width", "value_width", "window")),
        ("scale", ctypes.c_float),
        *((name, View) for name in ("q", "k", "v")),
        ("segments", ctypes.c_void_p),
        ("segment_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
    ]


class SticksGradients(ctypes.Structure):
    """keysift_sticks_gradients of csrc/sticks.h."""

    _fields_ = [(name, View) for name in ("dq", "dk", "dv")]


class ThresholdRows(ctypes.Structure):
    """keysift_threshold_rows of csrc/thresholds.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("matrices", "rows", "keys", "visible", "window")),
        ("orders", ctypes.c_void_p),
    ]


class DecodeLayer(ctypes.Structure):
    """keysift_decode_layer of csrc/decode.h."""

    _fields_ = [
        *((n, ctypes.c_int64) for n in ("heads", "kv_heads", "key_width", "value_width")),
        *((n, ctypes.c_int64) for n in ("hidden_width", "layer_window")),
        ("attention", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        *((name, ctypes.c_void_p) for name in ("norm_gain", "q", "k", "v", "o", "gate")),
        *((name, ctypes.c_void_p) for name in ("q_bias", "k_bias", "v_bias", "o_bias", "q_gain", "k_gain")),
        ("frequencies", ctypes.c_void_p),
        ("position_divisor", ctypes.c_double),
        ("attention_factor", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("window", "effective_window", "acceptance", "head_scale")),
        *((name, ctypes.c_void_p) for name in ("hidden_gain", "hidden_gate", "hidden_up", "hidden_down")),
        *((name, ctypes.c_double) for name in ("norm_eps", "q_eps", "k_eps")),
        ("w_th", ctypes.c_float),
        ("search", ctypes.c_int32),
    ]


class DecodeSource(ctypes.Structure):
    """keysift_decode_source of csrc/decode.h."""

    _fields_ = [("memory", ctypes.c_void_p), ("copy", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


class DecodeModel(ctypes.Structure):
    """keysift_decode_model of csrc/decode.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("width", "vocabulary", "layer_count")),
        ("layers", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("unit_rows", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("embedding", "head", "final_gain")),
        *((name, ctypes.c_double) for name in ("final_eps", "in_scale", "out_scale")),
        ("sources", ctypes.c_void_p),
        ("source_count", ctypes.c_int64),
    ]


class DecodeCache(ctypes.Structure):
    """keysift_decode_cache of csrc/decode.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("k", "v", "ring")),
        ("slots", ctypes.c_int64),
        ("prepared", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("prepared_tokens", ctypes.c_void_p),
        ("search", ctypes.c_void_p),
        ("search_bytes", ctypes.c_int64),
        ("search_state", ctypes.c_void_p),
        ("finite", ctypes.c_int64),
    ]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "keysift_view": View,
    "keysift_segment": Segment,
    "keysift_problem": Problem,
    "keysift_gradients": Gradients,
    "keysift_gate": Gate,
    "keysift_gate_gradients": GateGradients,
    "keysift_sums_problem": SumsProblem,
    "keysift_sums_gradients": SumsGradients,
    "keysift_sticks_problem": SticksProblem,
    "keysift_sticks_gradients": SticksGradients,
    "keysift_threshold_rows": ThresholdRows,
    "keysift_decode_layer": DecodeLayer,
    "keysift_decode_source": DecodeSource,
    "keysift_decode_model": DecodeModel,
    "keysift_decode_cache": DecodeCache,
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
    "keysift_key_groups_new": ctypes.c_void_p,
    "keysift_key_groups_free": None,
    "keysift_tile_forward": ctypes.c_int,
    "keysift_tile_backward": ctypes.c_int,
    "keysift_sums_forward": ctypes.c_int,
    "keysift_sums_backward": ctypes.c_int,
    "keysift_sticks_forward": ctypes.c_int,
    "keysift_sticks_backward": ctypes.c_int,
    "keysift_threshold_weigh": ctypes.c_int,
    "keysift_threshold_differentiate": ctypes.c_int,
    "keysift_decode": ctypes.c_int,
    "keysift_search_bytes": ctypes.c_int64,
}


def unavailable() -> Unavailable | None:
    """Why the library cannot run on this machine, or None. The result is cached per path."""
    loaded = _load(LIBRARY)
    return loaded if isinstance(loaded, Unavailable) else None


# Compiled graphs cannot check files. torch.compiler.assume_constant_result sets the same mark, but imports
# torch._dynamo, which would double the start-up time of every command.
unavailable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def load() -> Any:
    """The loaded library. Raises UnsupportedError where it is unavailable."""
    loaded = _load(LIBRARY)
    if isinstance(loaded, Unavailable):
        raise UnsupportedError(f"{loaded}; leave backend='auto' to compute in plain torch")
    return loaded


@cache
def _load(path: Path) -> Any:
    """The library, or the reason why it is unavailable."""
    if not path.exists():
        return Unavailable(
            Code.NOT_BUILT,
            "the compiled kernel was not built (no C++ compiler when keysift was installed): plain torch runs instead, "
            "many times slower for screening; install a compiler and reinstall keysift",
        )
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return Unavailable(Code.DOES_NOT_LOAD, f"the compiled kernel does not load: {error}; reinstall keysift")
    reason = _stale(loaded, path) or _wrong_isa(loaded)
    if reason is not None:
        return reason
    _share_threads(loaded)
    return loaded


def _stale(loaded: Any, path: Path) -> Unavailable | None:
    """Compare the structures of the library with ours: one built from other sources would misread them."""
    missing = next((name for name in FUNCTIONS if not hasattr(loaded, name)), None)
    if missing is not None:
        return Unavailable(Code.STALE, f"{path.name} is stale: it has no {missing}; reinstall keysift")
    for name, returns in FUNCTIONS.items():
        getattr(loaded, name).restype = returns
    built = loaded.keysift_layout().decode().splitlines()
    if built == layout():
        return None
    differing = [f"{theirs!r} for {ours!r}" for theirs, ours in zip(built, layout(), strict=False) if theirs != ours]
    difference = "; ".join(differing) or f"{len(built)} structures for {len(layout())}"
    return Unavailable(Code.STALE, f"{path.name} is stale: it was built with {difference}; reinstall keysift")


def layout() -> list[str]:
    """Size and field offsets of every structure, one line each, in the format of keysift_layout()."""
    return [
        f"{name} {ctypes.sizeof(shape)}:"
        + "".join(f" {field[0]} {getattr(shape, field[0]).offset}" for field in shape._fields_)
        for name, shape in STRUCTURES.items()
    ]


def _wrong_isa(loaded: Any) -> Unavailable | None:
    name = os.environ.get("KEYSIFT_ISA", "")
    status = loaded.keysift_isa_status(name.encode())
    available = ", ".join(loaded.keysift_isas().decode().split())
    if status == ISA_UNKNOWN:
        return Unavailable(
            Code.ISA_UNKNOWN, f"KEYSIFT_ISA={name} is not an instruction set; unset it, or use one of: {available}"
        )
    if status == ISA_NOT_HERE:
        return Unavailable(
            Code.ISA_NOT_HERE, f"KEYSIFT_ISA={name} cannot run on this machine; unset it, or use one of: {available}"
        )
    return None


def _share_threads(loaded: Any) -> None:
    try:
        pool = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        addresses = [ctypes.cast(f, ctypes.c_void_p) for f in (pool.torch_parallel_for, pool.torch_get_num_threads)]
    except (OSError, AttributeError):
        # This torch does not export its pool, so the library starts its own threads.
        loaded.keysift_set_threads(None, None, ctypes.c_int64(torch.get_num_threads()))
        return
    loaded.keysift_set_threads(*addresses, ctypes.c_int64(0))


def instruction_set() -> str | None:
    """The variant in use: avx512, avx2 or plain."""
    return None if unavailable() is not None else str(load().keysift_isa().decode())


def instruction_sets() -> list[str]:
    """Every variant that was built and can run on this machine, best first."""
    return [] if unavailable() is not None else load().keysift_isas().decode().split()


def check_status(status: int) -> None:
    """Raise the library's last error unless the status is 0."""
    if status != 0:
        message = load().keysift_last_error().decode()
        raise UnsupportedError(f"the compiled kernel rejected the call: {message}; backend='dense' runs the definition")


def pointer(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())

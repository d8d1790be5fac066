"""Triton's interpreter: with TRITON_INTERPRET=1 in the environment, the kernels run on CPU tensors."""

import os
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter

from keysift.kernels.gpu import availability, screening, sums

READY = os.environ.get("TRITON_INTERPRET") == "1"
# numpy warns where a device computes inf or NaN in lanes that are selected away.
needs_interpreter = [
    pytest.mark.skipif(not READY, reason="needs TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a device function. Triton 3.9 patches the language again in every call, and each patch slows the next."""
    if self.fn.__globals__.get("core") is tl.core and tl.core.arange.__name__ != "<lambda>":
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*args, **kwargs)


if READY and "cpu" not in availability.DEVICE_TYPES:
    interpreter.InterpretedFunction.__call__ = _call
    availability.DEVICE_TYPES.append("cpu")
    screening.register("cpu")
    sums.register("cpu")

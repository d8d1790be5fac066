"""`needs_kernel` skips a test, with the reason, on machines without the compiled kernel."""

import pytest

from keysift.kernels.backend import Code
from keysift.kernels.cpu import library

_REASON = library.unavailable()
# A stale or broken library is not a reason to skip: its tests should fail.
LACKS_KERNEL = _REASON is not None and _REASON.code in (Code.NOT_BUILT, Code.ISA_NOT_HERE)
needs_kernel = pytest.mark.skipif(
    LACKS_KERNEL,
    reason=f"THE COMPILED KERNEL WAS NOT TESTED: {_REASON}",
)

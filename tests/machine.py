"""What this machine can run: a test that needs more is skipped, and says why."""

import pytest

from keysift.kernels import native

_REASON = native.unusable()
# A library that is there but stale or broken is a fault to be seen, not a machine that lacks something.
LACKS_KERNEL = _REASON is not None and _REASON.code in (native.Code.NOT_BUILT, native.Code.ISA_NOT_HERE)
needs_kernel = pytest.mark.skipif(
    LACKS_KERNEL,
    reason=f"THE COMPILED KERNEL WAS NOT TESTED: {_REASON}",
)

"""Groups of the keys of a long row, with which the compiled screening kernel refuses keys (docs/search.md)."""

import ctypes
import weakref

from keysift.kernels.cpu import library


class KeyGroups:
    """Groups of the keys of one row and layer, kept between calls that add keys to the row.

    With `always`, every tile with a long window uses them; otherwise an estimate decides.
    """

    def __init__(self, *, always: bool) -> None:
        loaded = library.load()
        # None if there is no memory: the kernel then scans.
        self.handle: int | None = loaded.keysift_key_groups_new(ctypes.c_int32(always))
        weakref.finalize(self, loaded.keysift_key_groups_free, ctypes.c_void_p(self.handle))

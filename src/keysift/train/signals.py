"""Ctrl-C, SIGTERM and a lost terminal (SIGHUP) ask a run to save and leave; a second one does not wait."""

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A terminal's Ctrl-C reaches every process, and a launcher (torchrun, a sweep) then passes it on: the same wish, twice.
SAME_WISH = 2.0


class Stop:
    """`asked` becomes true with the first signal. One that comes more than two seconds later acts as it always did."""

    def __init__(self) -> None:
        self._heard: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        return self._heard is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in _ASKED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._heard is None:
            self._heard = now
        elif now - self._heard > SAME_WISH:
            before = self._before[signal.Signals(number)]
            self._restore()
            if callable(before):
                before(number, frame)
            else:
                os.kill(os.getpid(), number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

"""Ctrl-C, SIGTERM and a lost terminal (SIGHUP) ask a run to save and leave; a second one does not wait.

A signal that was ignored when the run started stays ignored: SIGHUP under nohup, SIGINT for a script's background job.
"""

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
        self._again: threading.Timer | None = None

    @property
    def asked(self) -> bool:
        return self._heard is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heeded = [number for number in _ASKED if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._hear) for number in heeded}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._again is not None:
            self._again.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._heard is None:
            self._heard = now
        elif now - self._heard > SAME_WISH:
            self._insist(number, frame)

    def _insist(self, number: int, frame: FrameType | None) -> None:
        # What a handler raises inside other people's callbacks may be swallowed there: it is raised until it is out.
        self._again = threading.Timer(1.0, os.kill, (os.getpid(), number))
        self._again.daemon = True
        self._again.start()
        before = self._before[signal.Signals(number)]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before)
            os.kill(os.getpid(), number)

"""Stop a run on Ctrl-C, SIGTERM or a lost terminal (SIGHUP): the first signal saves and exits, a second exits at once.

A signal that is ignored when the run starts stays ignored: SIGHUP under nohup, SIGINT in a script's background job.
"""

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A terminal's Ctrl-C reaches every process, and a launcher (torchrun, a sweep) forwards it: one request, two signals.
SAME_REQUEST_SECONDS = 2.0


class StopRequest:
    """`requested` becomes true with the first signal. A signal more than two seconds later has its usual effect."""

    def __init__(self) -> None:
        self._received: float | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    @property
    def requested(self) -> bool:
        return self._received is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received is None:
            self._received = now
        elif now - self._received > SAME_REQUEST_SECONDS:
            self._exit_at_once(number, frame)

    def _exit_at_once(self, number: int, frame: FrameType | None) -> None:
        # An exception raised inside another library's callback may be swallowed there: repeat the signal until it is
        # not.
        self._timer = threading.Timer(1.0, os.kill, (os.getpid(), number))
        self._timer.daemon = True
        self._timer.start()
        previous = self._previous[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(number, previous)
            os.kill(os.getpid(), number)

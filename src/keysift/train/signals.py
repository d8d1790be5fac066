"""Ctrl-C and SIGTERM ask a run to save and leave; a second one does not wait."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_ASKED = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """`asked` becomes true. The old handlers come back with the first signal, so the next one acts at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in _ASKED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

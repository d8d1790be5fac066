"""Tokenize in several processes, with results in order.

A worker is a new interpreter that reads pickled chunks from stdin and writes arrays to stdout. Unlike multiprocessing,
it neither forks a process with running threads nor imports the caller's script, so it works in a notebook and in a
script without a __main__ guard. When the parent dies, its pipes close and the workers exit.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue

from keysift.core.errors import DataError
from keysift.data.tokenizers.base import Ids, Tokenizer

_COMMAND = "from keysift.data.workers import work; work()"


def encode_chunks(tokenizer: Tokenizer, chunks: Iterable[list[str]], workers: int) -> Iterator[list[Ids]]:
    """Token ids of every text of every chunk, in order. Starts no process for one worker or a single chunk."""
    chunks = iter(chunks)
    first = next(chunks, None)
    if first is None:
        return
    second = next(chunks, None) if workers > 1 else None
    yield [tokenizer.encode_array(text) for text in first]
    if second is None:
        for chunk in chunks:
            yield [tokenizer.encode_array(text) for text in chunk]
        return
    with _Pool(tokenizer, workers) as pool:
        yield from pool.map(_chain(second, chunks))


def _chain(first: list[str], rest: Iterator[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from rest


class _Pool:
    def __init__(self, tokenizer: Tokenizer, workers: int) -> None:
        try:
            pickled = pickle.dumps(tokenizer)
        except Exception as error:  # objects may raise any exception when they are pickled
            raise DataError(f"{tokenizer.name} cannot be sent to other processes ({error}); pass workers=1") from error
        # One process per worker, so the Rust library must not start a thread pool in each.
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        self._name = tokenizer.name
        self._processes = [
            # -P: import nothing from the working directory, where a numpy.py may lie beside the user's text.
            subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
            )
            for _ in range(workers)
        ]
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers)
        for process in self._processes:
            self._threads.submit(self._send_tokenizer, process, pickled)

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()

    def _send_tokenizer(self, process: subprocess.Popen[bytes], pickled: bytes) -> None:
        with suppress(OSError):  # a dead worker is detected with its first chunk
            _send(process, pickled)
        self._idle.put(process)

    def map(self, chunks: Iterator[list[str]]) -> Iterator[list[Ids]]:
        waiting: deque[Future[list[Ids]]] = deque()
        for chunk in chunks:
            waiting.append(self._threads.submit(self._encode, chunk))
            if len(waiting) > 2 * len(self._processes):  # limits the number of chunks in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _encode(self, chunk: list[str]) -> list[Ids]:
        process = self._idle.get()
        try:
            _send(process, pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL))
            assert process.stdout is not None
            ids: list[Ids] = pickle.load(process.stdout)
        except (OSError, EOFError) as error:
            raise DataError(
                f"a process that tokenizes with {self._name} died (exit code {process.wait(10)}); "
                f"its own message is above; try workers=1"
            ) from error
        finally:
            self._idle.put(process)
        return ids


def _send(process: subprocess.Popen[bytes], message: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(message)
    process.stdin.flush()


def work() -> None:
    """Main loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which stops its workers
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # text printed by a tokenizer must not mix with the arrays
    tokenizer: Tokenizer = pickle.load(sys.stdin.buffer)
    while True:
        try:
            chunk: list[str] = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        out.write(pickle.dumps([tokenizer.encode_array(text) for text in chunk], pickle.HIGHEST_PROTOCOL))
        out.flush()

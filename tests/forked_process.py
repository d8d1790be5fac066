"""`keysift` as a process, forked from one that has imported it. A new process spends most of a short run on imports.

The server imports, computes nothing, and forks a child for each request. Tests of start-up itself use subprocess.
"""

import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import GenericAlias
from typing import IO, Any

ROOT = Path(__file__).parent.parent
PRELOADED = ("torch._dynamo", "keysift.cli.main", "keysift.cli.verbs.train", "keysift.sweep.child")
SIZE = 1 << 20  # bytes of the longest request


class ForkedProcess:
    """The part of subprocess.Popen that tests and `keysift.sweep.launch` use, for `python -m keysift[.sweep.child]`."""

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(
        self,
        command: list[str],
        *,
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        env: Mapping[str, str],
        cwd: Path | None = None,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        module = command.index("-m") + 1
        self.returncode: int | None = None
        # Files without a name hold the output until `communicate`.
        self._pipes = [os.memfd_create("output") if file == subprocess.PIPE else None for file in (stdout, stderr)]
        self._text = text
        request = {
            "module": command[module],
            "arguments": command[module + 1 :],
            "environment": dict(env),
            "folder": str(cwd or Path.cwd()),
            "session": start_new_session,
        }
        files = [
            file.fileno() if pipe is None else pipe  # type: ignore[union-attr]
            for file, pipe in zip((stdout, stderr), self._pipes, strict=True)
        ]
        self.pid = _server().request(request, files)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _server().request({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("keysift", timeout or 0)
            time.sleep(0.02)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[Any, ...]:
        self.wait(timeout)
        outputs = []
        for pipe in self._pipes:
            if pipe is not None:
                with open(pipe, "rb", closefd=True) as file:
                    file.seek(0)
                    outputs.append(file.read().decode() if self._text else file.read())
        self._pipes = []
        return tuple(outputs)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_keysift(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with additions to the environment, and wait for it."""
    process = ForkedProcess(
        ["-m", "keysift", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        cwd=cwd,
        text=True,
    )
    stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(arguments, process.wait(), stdout, stderr)


class _Server:
    """A process that runs `serve`, and the socket to it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "tests.forked_process", str(other.fileno())]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, cwd="/", env=environment, pass_fds=[other.fileno()])
        other.close()

    def request(self, request: dict[str, object], files: list[int] | None = None) -> Any:
        socket.send_fds(self._socket, [json.dumps(request).encode()], files or [])
        return json.loads(self._socket.recv(SIZE))


@functools.cache
def _server() -> _Server:
    return _Server()


def serve(connection: socket.socket) -> None:
    """Answer requests until the other side is closed: the pid of a started process, or the exit code of one."""
    for name in PRELOADED:
        importlib.import_module(name)
    running = set()
    while True:
        select.select([connection], [], [])
        data, files, _, _ = socket.recv_fds(connection, SIZE, 2)
        if not data:
            break
        request = json.loads(data)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            running.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = _fork(files=files, **request)
            running.add(answer)
        connection.send(json.dumps(answer).encode())
    for pid in running:  # the tests ended early
        os.kill(pid, signal.SIGKILL)


def _fork(
    module: str, arguments: list[str], environment: dict[str, str], folder: str, session: bool, files: list[int]
) -> int:
    child = os.fork()
    if child:
        for file in files:
            os.close(file)
        return child
    code = os.EX_SOFTWARE
    try:
        if session:
            os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for target, file in zip((1, 2), files, strict=True):
            os.dup2(file, target)
        if module == "keysift":
            code = sys.modules["keysift.cli.main"].main(arguments)
        else:
            code = sys.modules[module].main(*arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

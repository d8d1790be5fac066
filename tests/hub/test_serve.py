"""`transformers serve` answers with a keysift model, to several at once."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import keysift
from tests.hub.ours import kept

pytestmark = pytest.mark.slow
PROMPTS = ("def f(", "import ", "# a comment that is longer", "x")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    for needed in ("fastapi", "openai", "uvicorn"):
        pytest.importorskip(needed)
    pytest.importorskip("transformers.cli.serving.completion", reason="transformers 5.5 serves chats only")
    log = tmp_path_factory.mktemp("log") / "serve.log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "keysift.hub", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as told:
        process = subprocess.Popen(
            [*command, "--device", "cpu", str(directory)],
            stdout=told,
            stderr=told,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    try:
        for _ in range(1200):
            assert process.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def completed(server: str, directory: Path, prompt: str) -> str:
    body = {"model": str(directory), "prompt": prompt, "max_tokens": 12, "temperature": 0}
    asked = urllib.request.Request(
        f"{server}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        told: dict[str, Any] = json.load(answer)
    text: str = told["choices"][0]["text"]
    return text


def test_completions_one_and_several_at_once(server: str, directory: Path) -> None:
    expected = keysift.open(directory).generate(PROMPTS, max_new_tokens=12)
    assert completed(server, directory, PROMPTS[0]) == expected[0]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        found = list(threads.map(lambda prompt: completed(server, directory, prompt), PROMPTS))
    assert found == list(expected)

"""`transformers serve` with a keysift model, for single and concurrent requests."""

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
from tests.hub.keysift_models import saved_model

pytestmark = pytest.mark.slow
PROMPTS = ("def f(", "import ", "# a comment that is longer", "x")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("served"))


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
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [*command, "--device", "cpu", str(directory)],
            stdout=log_file,
            stderr=log_file,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "HF_HUB_CACHE": str(tmp_path_factory.mktemp("cache") / "missing"),
            },
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


def ask(server: str, path: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{server}/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["choices"][0]


def complete(server: str, directory: Path, prompt: str) -> str:
    text: str = ask(server, "completions", model=str(directory), prompt=prompt, max_tokens=12, temperature=0)["text"]
    return text


def test_chat_continues_the_messages(server: str, directory: Path) -> None:
    messages = [{"role": "system", "content": "def f("}, {"role": "user", "content": "import "}]
    options = {"model": str(directory), "max_tokens": 12, "temperature": 0}
    answer = ask(server, "chat/completions", messages=messages, **options)["message"]["content"]
    assert answer == keysift.open(directory).generate("def f(\nimport \n", max_new_tokens=12)


def test_single_and_concurrent_completions(server: str, directory: Path) -> None:
    expected = keysift.open(directory).generate(PROMPTS, max_new_tokens=12)
    assert complete(server, directory, PROMPTS[0]) == expected[0]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        actual = list(threads.map(lambda prompt: complete(server, directory, prompt), PROMPTS))
    assert actual == list(expected)


def test_models_are_listed_without_a_cache_folder(server: str) -> None:
    with urllib.request.urlopen(f"{server}/v1/models", timeout=60) as response:
        assert response.status == 200
        assert json.load(response)["object"] == "list"

"""Only regular files are read: a pipe in the place of a file is refused at once, on every path of the command line."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from keysift.cli.main import main
from keysift.core.regular_file import read_bytes, read_text
from keysift.data.corpus import File, _stamp
from tests.fuzz.inputs import TEXT, TINY
from tests.refusals import refuses

PROMPT = ("--prompt", "def ", "--max-new-tokens", "1")


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Interrupt a read that waits for the writer of a pipe."""

    def hung(*_: object) -> None:
        raise AssertionError("waits for the writer of a pipe")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("é\r\n".encode())
    assert read_text(tmp_path / "text") == "é\r\n"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with refuses("expected a regular file, got a pipe or a device", error=OSError):
            read_bytes(path)
    with refuses("Is a directory", error=IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nothing")


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return int(ended.value.code or 0)


def test_a_pipe_as_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "small.toml")
    assert call("train", "--config", str(tmp_path / "small.toml"), "--dry-run") == 2
    assert "small.toml cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_a_pipe_in_the_place_of_any_file_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSIFT_CACHE", str(tmp_path / "cache"))
    text, run, corpus = tmp_path / "story.txt", tmp_path / "run", tmp_path / "corpus"
    text.write_text(TEXT)
    assert call("data", "build", str(text), "--out", str(corpus)) == 0
    assert call("train", "--data", str(corpus), *TINY, "--steps", "2", "--out", str(run), "--quiet") == 0
    commands = {
        run: (
            ("generate", "{}", *PROMPT),
            ("runs", "{}"),
            ("report", "{}", "-o", str(tmp_path / "page.html")),
            ("train", "--resume", "{}", "--steps", "3", "--quiet"),
            ("inspect", "{}", "--text", "once upon a time", "--diagnostics-only"),
        ),
        corpus: (("data", "show", "{}"), ("train", "--data", "{}", *TINY, "--dry-run")),
    }
    number = 0
    for source, argvs in commands.items():
        files = [path.relative_to(source) for path in source.rglob("*") if path.is_file() and not path.is_symlink()]
        for file in files:
            for argv in argvs:
                number += 1
                copied = Path(shutil.copytree(source, tmp_path / f"copy-{number}", symlinks=True))
                (copied / file).unlink()
                os.mkfifo(copied / file)
                signal.alarm(60)
                assert call(*(word.format(copied) for word in argv)) in (0, 2), (file, argv)
                shutil.rmtree(copied)


def test_a_shard_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shard")
    with refuses("shard is not a regular file; build the corpus again"):
        _stamp(tmp_path, File(name="shard", size=0, sha256=""))


def test_a_directory_of_transformers_with_a_pipe_is_refused(tmp_path: Path) -> None:
    from keysift.hub.lens_model import open_model
    from tests.hub.transformers_models import save_model

    directory = save_model(tmp_path / "llama")
    os.mkfifo(directory / "special_tokens_map.json")
    with refuses("special_tokens_map.json is a pipe or a device"):
        open_model(str(directory))

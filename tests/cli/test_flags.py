"""Inputs and outputs are checked before any work: files of --out, standard input."""

import io
import sys
from pathlib import Path

import pytest

from keysift.cli.flags import texts
from keysift.cli.flags.constructors import parse_integer
from keysift.cli.flags.out_file import make_folder_of
from keysift.cli.main import parse
from tests.refusals import refuses


def test_the_folder_of_an_output_file_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder_of(tmp_path / "new" / "page.html")
    assert (tmp_path / "new").is_dir()
    (tmp_path / "file").touch()
    with refuses(r"page.html cannot be written \(.*\); name a file in another folder with --out"):
        make_folder_of(tmp_path / "file" / "page.html")
    monkeypatch.setattr("os.access", lambda *_: False)
    with refuses("page.html cannot be written, because .*new is read-only; name a file in another folder with --maps"):
        make_folder_of(tmp_path / "new" / "page.html", "--maps")


def test_integers_have_at_most_64_bits(capsys: pytest.CaptureFixture[str]) -> None:
    """A larger one overflows where a size or a time is computed as a float."""
    generate = ["generate", "runs/a", "--prompt", "x"]
    for flag in ("--max-new-tokens", "--expand-windows"):
        with refuses("an integer must lie within 64 bits, got one of 401 digits; give a smaller one"):
            parse([*generate, flag, str(10**400)])
    with pytest.raises(SystemExit):
        parse([*generate, "--top-k", str(2**64)])
    assert "an integer must lie within 64 bits" in capsys.readouterr().err
    parse([*generate, "--seed", str(2**64 - 1)])
    with refuses("an integer must lie within 64 bits, got one of 20 digits"):
        parse_integer(str(2**64))  # where it is raised; parse raises it without its traceback


def test_standard_input_must_be_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    with refuses("standard input is not UTF-8 text .*; convert it first"):
        texts._standard_input()

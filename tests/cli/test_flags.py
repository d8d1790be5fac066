"""Inputs and outputs are checked before any work: files of --out, standard input."""

import io
import sys
from pathlib import Path

import pytest

from keysift.cli.flags import texts
from keysift.cli.flags.out_file import make_folder_of
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


def test_standard_input_must_be_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    with refuses("standard input is not UTF-8 text .*; convert it first"):
        texts._standard_input()

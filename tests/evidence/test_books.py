"""The page of the text models: its figures are those of the records."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from evidence.pages import books
from evidence.study import ROOT

NAME = "books-multiscreen"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "books", tmp_path / "books")
    return tmp_path


def test_bits_per_byte_of_the_page_are_those_of_the_record(root: Path) -> None:
    path = root / "books" / f"{NAME}-loss.json"
    record = json.loads(path.read_text())
    assert f"| {record['bits_per_byte']:.4f} | {record['bytes']:,} |" in books.render(root)["books/README.md"]
    path.write_text(json.dumps(record | {"bits_per_byte": 1.25}))
    assert "| 1.2500 |" in books.render(root)["books/README.md"]


def test_every_setting_has_a_row_up_to_16_times_the_training_length(root: Path) -> None:
    record = json.loads((root / "books" / f"{NAME}-positions.json").read_text())
    page = books.render(root)["books/README.md"]
    last = {p["setting"]: p for p in record["points"] if p["context"] == 16 * 1024}
    assert {"as trained", "windows expanded"} <= set(last)
    for setting, point in last.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {NAME} | {setting} |")]
        assert row.endswith(f"{point['nats']:.3f} ± {point['error']:.3f} |")


def test_no_book_is_both_trained_on_and_held_out() -> None:
    parts = tomllib.loads((ROOT / "books" / "books.toml").read_text())
    hashes = [book["sha256"] for part in parts.values() for book in part.values()]
    assert len(set(hashes)) == len(hashes) == 8


def test_nothing_without_records(tmp_path: Path) -> None:
    assert books.render(tmp_path) == {}

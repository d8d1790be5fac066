"""The page of windows against acceptances: every recorded tile, its correlation, and the keys it accepts."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.pages import tiles
from evidence.records import write_records
from evidence.study import ROOT
from tests.evidence.test_rules import seeds

# Longer windows are stricter in the first layer; the second layer has one tile.
LAYERS = [
    {"layer": 0, "windows": [2.0, 100.0], "acceptances": [0.9, 0.6], "accepted_keys": [1.5, 8.0], "tokens": 256},
    {"layer": 1, "windows": [5000.0], "acceptances": [0.2], "accepted_keys": [3.0], "tokens": 256},
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "one-hop-long").mkdir()
    shutil.copy(ROOT / "one-hop-long" / "study.toml", tmp_path / "one-hop-long")
    records = [replace(record, measures={"windows": LAYERS}) for record in seeds((2.0, 2.1))]
    write_records(tmp_path / "one-hop-long" / "records.jsonl", records)
    return tmp_path


def test_tiles_of_studies(root: Path) -> None:
    files = tiles.render(root)
    assert set(files) == {"tiles/README.md", "tiles/figure.svg", "tiles/accepted.svg"}
    cells = "-1.00 (-1.00 to -1.00) | 0.90 (2) | 0.60 (2) | 0.20 (2) | 1.5 (2) | 8.0 (2) | 3.0 (2) |"
    assert cells in files["tiles/README.md"]
    assert "In 2 of 2 models" in files["tiles/README.md"]
    assert files["tiles/figure.svg"].count("<circle") == files["tiles/accepted.svg"].count("<circle") >= 3


def test_tiles_of_checkpoints(root: Path) -> None:
    (root / "tiles").mkdir()
    record = json.loads((ROOT / "tiles" / "needle-multiscreen.json").read_text())
    (root / "tiles" / "needle-multiscreen.json").write_text(json.dumps(record))
    (row,) = re.findall(r"\| checkpoint needle-multiscreen \| 1 \| 16 .*", tiles.render(root)["tiles/README.md"])
    short = [head for head in record["heads"] if head["window"] < 64]
    accepted = sum(head["accepted"] for head in short) / len(short) * (record["tokens"] + 1) / 2
    assert f"{accepted:.1f} ({len(short)})" in row


def test_nothing_without_windows(tmp_path: Path) -> None:
    assert tiles.render(tmp_path) == {}


def test_accepted_keys_are_left_out_where_they_were_not_counted(root: Path) -> None:
    layers = [{name: value for name, value in layer.items() if name != "accepted_keys"} for layer in LAYERS]
    records = [replace(record, measures={"windows": layers}) for record in seeds((2.0,))]
    write_records(root / "one-hop-long" / "records.jsonl", records)
    files = tiles.render(root)
    assert set(files) == {"tiles/README.md", "tiles/figure.svg"}
    assert "accepted.svg" not in files["tiles/README.md"]
    assert "| -1.00 |" in files["tiles/README.md"], "one run has no spread"

"""JSON that anyone may have written."""

import re
from pathlib import Path

import pytest

from keysift.core import jsons
from tests.refusals import refuses

SOURCE = Path(__file__).parent.parent.parent / "src" / "keysift"
# What these read was written by this program: by a parent process, by the tokenizers package, or for the page.
OWN = {"bench/child.py", "cli/eval_lm.py", "sweep/child.py", "core/jsons.py", "data/bpe.py", "web/play_page.py"}


def test_whatever_is_wrong_is_a_value_error() -> None:
    assert jsons.loads(b'{"a": [1, null]}') == {"a": [1, None]}
    for wrong in ("{", b"\xff", '"' + "\\ud800", "1" * 5000):
        with pytest.raises(ValueError):
            jsons.loads(wrong)
    for deep in ("[" * 100_000, '{"a":' * 100_000):
        with refuses("nested too deeply", ValueError):
            jsons.loads(deep)


def test_files_are_read_by_it() -> None:
    readers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text())
    }
    assert readers <= OWN

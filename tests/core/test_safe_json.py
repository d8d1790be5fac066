"""JSON from untrusted files."""

import re
from pathlib import Path

import pytest

from keysift.core import safe_json
from tests.refusals import refuses

SOURCE = Path(__file__).parent.parent.parent / "src" / "keysift"
# These read JSON from a trusted origin: a parent process, the tokenizers package, a record in the
# repository, or data for a page.
TRUSTED = {
    "bench/subprocess_call.py",
    "cli/evaluation/lm.py",
    "kernels/gpu/report.py",
    "kernels/gpu/roofline.py",
    "sweep/child.py",
    "sweep/on_ray.py",
    "core/safe_json.py",
    "data/tokenizers/bpe.py",
    "web/play/page.py",
}


def test_invalid_json_is_a_value_error() -> None:
    assert safe_json.loads(b'{"a": [1, null]}') == {"a": [1, None]}
    for text in ("{", b"\xff", '"' + "\\ud800", "1" * 5000):
        with pytest.raises(ValueError):
            safe_json.loads(text)
    for deep in ("[" * 100_000, '{"a":' * 100_000):
        with refuses("nested too deeply", ValueError):
            safe_json.loads(deep)


def test_untrusted_files_are_read_with_safe_json() -> None:
    readers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text())
    }
    assert readers <= TRUSTED

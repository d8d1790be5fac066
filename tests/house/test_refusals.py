"""Raise statements are identified by file, function and message, not by line."""

from tests.refusals import new_untested, raises_in

BEFORE = """
def read(path):
    if path is None:
        raise DataError(f"{path} is not a file; pass a path")
    raise
"""


def test_a_raise_keeps_its_identity_when_lines_move() -> None:
    (before,) = raises_in(BEFORE, "data/files.py")
    (after,) = raises_in("import os\n\n\n" + BEFORE, "data/files.py")
    assert before.identity == after.identity == "data/files.py read DataError is not a file; pass a path"
    assert before.place != after.place


def test_only_unlisted_raises_are_new() -> None:
    (site,) = raises_in(BEFORE, "data/files.py")
    assert new_untested([site], "") == [site]
    assert new_untested([site], f"{site.identity}\n") == []

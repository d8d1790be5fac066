"""`show` and the form that a notebook displays."""

import sys
import webbrowser
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest

from keysift.lens.inspection import inspect
from keysift.records.lens import Record
from tests.lens.models import LINE, transformer


@pytest.fixture(scope="module")
def record() -> Record:
    return inspect(transformer(), [LINE], tests=False)


def test_show_writes_or_opens_the_page(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert record.show(tmp_path / "page.html") == tmp_path / "page.html"
    written = (tmp_path / "page.html").read_text()
    assert written == record.to_html()
    assert "data-inline " not in written.split(">", 2)[1]
    monkeypatch.setitem(sys.modules, "IPython", None)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    path = record.show()
    assert path is not None
    assert opened == [path.as_uri()]
    assert path.read_text() == written


def test_a_notebook_shows_the_maps_in_a_frame(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))  # type: ignore[arg-type]
    assert record.show() is None
    assert shown == [record]
    frame = record._repr_html_()
    assert frame.startswith("<iframe ")
    assert "sandbox='allow-scripts allow-downloads'" in frame
    inside = unescape(frame.split("srcdoc='", 1)[1].rsplit("'>", 1)[0])
    assert inside == record.to_html(inline=True)
    assert inside.split(">", 2)[1].strip().startswith("<html data-inline ")

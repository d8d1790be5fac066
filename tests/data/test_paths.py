"""Untrusted folders and globs: link cycles, archives, compression bombs, deep trees. Each file is read once."""

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from keysift.data import files
from keysift.data.files import LocalFiles
from keysift.data.shards import build
from tests.refusals import refuses


def names(spec: Path | str) -> list[str]:
    return [path.name for path in LocalFiles(str(spec)).paths]


def test_link_cycles_end_and_files_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one.txt").write_text("one")
    (tmp_path / "a" / "b" / "two.txt").write_text("two")
    for number, folder in enumerate((tmp_path, tmp_path / "a", tmp_path / "a" / "b")):
        for target in (tmp_path, tmp_path / "a"):
            (folder / f"up{number}{target.name}").symlink_to(target)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "again.txt").symlink_to(tmp_path / "a" / "one.txt")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere.txt")
    assert sorted(names(tmp_path)) == ["one.txt", "two.txt"]
    assert sorted(names(f"{tmp_path}/**/*.txt")) == ["one.txt", "two.txt"]


def test_a_link_to_a_folder_elsewhere_is_followed(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.md").write_text("x")
    (tmp_path / "texts" / "link").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path / "texts") == ["x.md"]


def test_a_tree_deeper_than_the_recursion_limit(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(1200):
        folder = folder / "d"
        folder.mkdir()
    (folder / "x.txt").write_text("x")
    assert names(tmp_path) == ["x.txt"]
    (folder / "x.txt").unlink()
    while folder != tmp_path:  # pytest cannot remove a tree this deep
        folder.rmdir()
        folder = folder.parent


def test_globs_skip_hidden_names_unless_the_pattern_starts_with_a_dot(tmp_path: Path) -> None:
    for name in ("a.txt", ".b.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "c.txt").write_text("x")
    assert names(f"{tmp_path}/**/*.txt") == ["a.txt"]
    assert names(f"{tmp_path}/.b*") == [".b.txt"]
    with refuses("no file matches"):
        names(tmp_path / "nothing.txt")


def write_gzip(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data))


def test_only_compressed_files_with_text_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    text = "déjà vu, "
    write_gzip(folder / "notes.gz", (text * 900).encode())
    write_gzip(folder / "log.1.gz", (text * 90).encode())
    write_gzip(folder / "page.html.gz", b"<p>")
    array = io.BytesIO()
    np.save(array, np.arange(9.0))
    write_gzip(folder / "x.npy.gz", array.getvalue())
    write_gzip(folder / "empty.gz", b"")
    write_gzip(folder / "zeros.gz", bytes(90))
    (folder / "damaged.gz").write_bytes(b"no gzip at all")
    with tarfile.open(folder / "y.tar.gz", "w:gz") as archive:
        archive.add(folder / "notes.gz", "notes.gz")
    assert names(folder) == ["empty.gz", "log.1.gz", "notes.gz", "page.html.gz"]
    build(str(folder), "bytes", tmp_path / "c")
    stderr = capsys.readouterr().err
    assert all(
        f"{name}: it is compressed and not text" in stderr
        for name in ("x.npy.gz", "y.tar.gz", "zeros.gz", "damaged.gz")
    )
    with refuses("is not UTF-8 text"):
        list(LocalFiles(str(folder / "x.npy.gz")).documents())


@pytest.mark.parametrize("name", ["bomb.txt.gz", pytest.param("bomb.jsonl.gz", marks=pytest.mark.slow)])
def test_a_compression_bomb_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREE_UNPACKED", 2**18)
    monkeypatch.setattr(files, "_PIECE", 2**16)
    monkeypatch.setattr(files, "MAX_RATIO", 20)
    bomb = b"0" * 2**25
    write_gzip(tmp_path / name, bomb)
    with refuses(r"\.gz: its first [0-9,]+ bytes unpack to 327,680, more than 20 times as much; if that"):
        for _ in LocalFiles(str(tmp_path / name)).documents():
            pytest.fail("a document was returned before the limit was checked")
    normal_lines = b"".join(
        b'{"text": "%03d"}\n' % number for number in np.random.default_rng(0).integers(0, 999, 17_000)
    )
    write_gzip(tmp_path / name, normal_lines + bomb)
    tracemalloc.start()
    with refuses("unpack to [0-9,]+, more than 20 times as much"):
        for _ in LocalFiles(str(tmp_path / name)).documents():
            pass
    assert tracemalloc.get_traced_memory()[1] < 2**24, "the file was unpacked completely before it was refused"
    tracemalloc.stop()
    write_gzip(tmp_path / name, b'{"text": "0"}\n' * 2**14)
    assert sum(len(document.text) for document in LocalFiles(str(tmp_path / name)).documents()) >= 2**14


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.txt"])
def test_progress_counts_bytes_read(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = b"".join(b'{"text": "%d"}\n\n' % number for number in rng.integers(0, 2**60, 20_000))
    if name.endswith(".gz"):
        write_gzip(tmp_path / name, lines)
    else:
        (tmp_path / name).write_bytes(lines)
    (tmp_path / "b.txt").write_bytes(lines)
    source = LocalFiles(str(tmp_path))
    positions = [source.position for _ in source.documents()]
    assert positions == sorted(positions)
    assert 0 < positions[0] < source.size / 2
    assert source.position == source.size == sum(path.stat().st_size for path in tmp_path.iterdir())

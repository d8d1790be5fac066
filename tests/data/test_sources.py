"""Sources of documents: files, folders, compressed files, parquet, Hugging Face datasets."""

import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keysift.core.errors import DataError
from keysift.data import files, find_source
from keysift.data import sources as module
from keysift.data.documents import Document, Generated
from keysift.data.files import LONGEST, LocalFiles, _cut
from keysift.data.options import options
from keysift.data.sources import SOURCES
from tests.refusals import refuses


def texts(spec: str | Path) -> list[str]:
    return [document.text for document in find_source(str(spec)).documents()]


def test_the_standard_library_has_ten_megabytes() -> None:
    source = find_source("stdlib")
    names = [document.name for document in source.documents()]
    assert source.size is not None
    assert source.size > 10_000_000
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert "stdlib/ast.py" in names
    assert not [name for name in names if "site-packages" in name or "/test/" in name]
    assert source.identity() == find_source("stdlib").identity()
    json.dumps(source.identity())


def test_a_library_file_in_another_encoding_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    (tmp_path / "good.py").write_text("x = 1\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    assert texts("stdlib") == ["x = 1\n"]


def test_a_folder_gives_only_its_text_files(tmp_path: Path) -> None:
    """Files of a repository or a run, and files without a text suffix, are left out."""
    for path in ("a.txt", "sub/b.md", ".git/index", ".git/c.txt", "run/train.json", "run/samples/d.txt", "LICENSE"):
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_bytes(b"\xff" if path.endswith("index") else path.encode())
    assert [document.text for document in find_source(str(tmp_path)).documents()] == ["a.txt", "sub/b.md"]


def test_a_file_a_folder_and_a_glob(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "deep/c.py", "image.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    assert texts(tmp_path / "a.txt") == ["a.txt\n"]
    assert texts(tmp_path / "*.??*") == ["a.txt\n", "b.md\n", "image.png\n"]
    assert texts(tmp_path / "**/*.py") == ["deep/c.py\n"]
    assert texts(tmp_path) == ["a.txt\n", "b.md\n", "deep/c.py\n"]


def test_line_ends_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\ntwo\rthrée\n".encode())
    assert texts(tmp_path / "a.txt") == ["one\r\ntwo\rthrée\n"]


def test_a_single_file_is_split_into_documents(tmp_path: Path) -> None:
    text = "".join(f"paragraph {i} " + "word " * (i % 50) + "\n\n" for i in range(2000))
    (tmp_path / "a.txt").write_text(text)
    parts = texts(tmp_path / "a.txt")
    assert "".join(parts) == text
    assert 15 <= len(parts) <= 45
    assert all(part.endswith("\n\n") for part in parts)
    names = [document.name for document in find_source(str(tmp_path / "a.txt")).documents()]
    assert names[:2] == [f"{tmp_path}/a.txt#0", f"{tmp_path}/a.txt#1"]


def test_each_of_many_files_is_a_document(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text(f"{i}\n\n" * 3000)
    assert len(texts(tmp_path / "*.txt")) == 20
    assert LocalFiles(str(tmp_path / "*.txt")).section == LONGEST


@given(st.text(alphabet="aé🙂\n", min_size=1, max_size=4000), st.sampled_from([8, 64, 1024]))
def test_splitting_is_lossless_and_keeps_characters(text: str, section: int) -> None:
    data = text.encode()
    while len(data) >= 2 * section:
        cut = _cut(data, section)
        assert 0 < cut <= section
        data[:cut].decode()
        data = data[cut:]


def test_compressed_text_and_lines(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in ("one", "", "drei\nü"))
    (tmp_path / "a.jsonl").write_text(rows + "\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress("ü".encode()))
    (tmp_path / "d.gz").write_bytes(gzip.compress(b"d"))
    assert texts(tmp_path / "a.jsonl") == texts(tmp_path / "b.jsonl.gz") == ["one", "", "drei\nü"]
    assert texts(tmp_path / "c.txt.gz") == ["ü"]
    assert texts(tmp_path) == ["one", "", "drei\nü", "one", "", "drei\nü", "ü", "d"]


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"id": [1, 2], "text": ["one", "zwei"]}), path)
    assert texts(path) == ["one", "zwei"]
    parquet.write_table(pyarrow.table({"text": ["one", None]}), path)
    with refuses("row 1 has null for 'text'"):
        texts(path)
    parquet.write_table(pyarrow.table({"body": ["one"]}), path)
    with refuses("has no column 'text', got body"):
        texts(path)
    path.write_text("not parquet at all")
    with refuses("is not a parquet file"):
        texts(path)
    monkeypatch.setattr("keysift.data.files.find_spec", lambda name: None)
    with refuses(r"needs pyarrow to be read; run pip install 'keysift\[data\]'"):
        texts(path)


def test_a_parquet_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    from pyarrow import parquet

    monkeypatch.setattr(files, "FREE_UNPACKED", 2**22)
    path = tmp_path / "a.parquet"
    repeated = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 4000, pyarrow.int32()), ["x" * 2**18])
    parquet.write_table(pyarrow.table({"text": repeated}), path, compression="zstd")
    with refuses(
        f"a.parquet: its {path.stat().st_size:,} bytes unpack to at least [0-9,]+, more than 200 times as much"
    ):
        for _ in find_source(str(path)).documents():
            pytest.fail("a document was returned before the limit was checked")
    assert pyarrow.default_memory_pool().max_memory() < 2**27, "a whole batch of rows was unpacked at once"
    parquet.write_table(pyarrow.table({"text": ["x" * 2**23]}), path, compression="zstd", use_dictionary=False)
    with refuses("unpack to at least"):
        texts(path)


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"{number} words" for number in range(500)]}), path)
    whole = path.read_bytes()
    for at in range(4, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with suppress(DataError):
            texts(path)
    path.write_bytes(whole[:40] + bytes(1000) + whole[1040:])
    with refuses("a.parquet (is not a parquet file|cannot be read)"):
        texts(path)
    broken = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\x02\0\0\0"), pyarrow.py_buffer(b"\xff\xfe")]
    )
    parquet.write_table(pyarrow.table({"text": broken}), path)
    with refuses("is not a parquet file .*utf-8"):
        texts(path)
    parquet.write_table(pyarrow.table({"text": [1, 2]}), path)
    with refuses("has int64 in its column 'text', which must be string"):
        texts(path)


def test_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "one"}\n{"text": "zwei"}\n')
    (folder / "test.jsonl").write_text('{"text": "drei"}\n')
    assert texts(f"hf:{folder}") == ["one", "zwei"]
    assert texts(f"hf:{folder}::test") == ["drei"]
    assert find_source(f"hf:{folder}").identity() != find_source(f"hf:{folder}::test").identity()
    (folder / "train.jsonl").write_text('{"body": "one"}\n')
    (folder / "test.jsonl").unlink()
    with refuses("row 0 has no field 'text', got body"):
        texts(f"hf:{folder}")
    with refuses("cannot be loaded"):
        texts(f"hf:{tmp_path}/nowhere")
    with refuses(r"is written hf:NAME\[:CONFIG\[:SPLIT\]\], got hf:a:b:c:d"):
        find_source("hf:a:b:c:d")
    monkeypatch.setattr("keysift.data.hf.find_spec", lambda name: None)
    with refuses("needs the datasets package"):
        find_source("hf:name")


def test_the_identity_depends_on_the_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = find_source(str(path)).identity()
    assert before == find_source(str(path)).identity()
    path.write_text("two!")
    assert find_source(str(path)).identity() != before


def test_a_registered_source() -> None:
    class Numbers:
        documents = 2

        def document(self, number: int) -> Document:
            return Document(str(number), f"{number}")

    SOURCES.add("numbers", lambda options: Generated("numbers", Numbers()))
    try:
        assert texts("numbers") == ["0", "1"]
    finally:
        SOURCES.remove("numbers")


def test_options() -> None:
    assert options("a=1,b=0.5, c = x ") == {"a": 1, "b": 0.5, "c": "x"}
    assert options("") == {}
    with refuses("written key=value,key=value; got 'a'"):
        options("a")


def test_refusals(tmp_path: Path) -> None:
    with refuses("stdlib takes no options, got 'x'"):
        find_source("stdlib:x")
    with refuses("no file matches 'stdlb'; did you mean 'stdlib'"):
        find_source("stdlb")
    with refuses("holds no text; looked for .txt"):
        find_source(str(tmp_path))
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\xfe")
    with refuses("bad.txt is not UTF-8 text: byte 5 is 0xff"):
        texts(tmp_path / "bad.txt")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with refuses("bad.jsonl line 2 is not JSON"):
        texts(tmp_path / "bad.jsonl")
    for line, message in (
        ('{"body": "a", "id": 1}', "line 1 has no field 'text', got body, id; rename the field"),
        ("[1]", "line 1 is list, not an object"),
        ('{"text": 3}', "line 1 has a int for 'text', which must be a string; drop the row"),
        ('{"text": null}', "line 1 has null for 'text', which must be a string; drop the row"),
        ("[" * 100_000, "line 1 is not JSON .*nested too deeply"),
    ):
        (tmp_path / "bad.jsonl").write_text(line)
        with refuses(message):
            texts(tmp_path / "bad.jsonl")
    for damage in (b"no gzip", gzip.compress(b"text" * 999)[:-9], b"\x1f\x8b\x08\x00" + b"\xff" * 40):
        (tmp_path / "bad.gz").write_bytes(damage)
        with refuses("bad.gz cannot be read"):
            texts(tmp_path / "bad.gz")

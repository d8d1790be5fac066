"""Building corpora: shards, worker processes, cache, full disks, killed builds."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keysift.data import Bytes, Corpus, Document, Tokenizer, build, open_corpus, prepare, shards
from keysift.data.documents import Generated, Source
from keysift.data.shards import cache_folder
from keysift.data.tokenizers import bpe
from tests.refusals import refuses
from tests.train.crash_points import run_forked, watch_changes


class Texts:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.documents = len(texts)

    def document(self, number: int) -> Document:
        return Document(f"text {number}", self.texts[number])


def source_of(texts: list[str]) -> Source:
    """A source with these documents."""

    class TextSource(Generated):
        def identity(self) -> dict[str, object]:
            return {"texts": texts}

    return TextSource("texts", Texts(texts))


def all_tokens(corpus: Corpus) -> list[int]:
    """All tokens of the corpus."""
    return [int(i) for i in corpus.read(0, corpus.index.tokens)]


@settings(max_examples=30)
@given(st.lists(st.text(alphabet="ab é\n", max_size=40), min_size=1, max_size=12), st.integers(1, 50))
def test_documents_joined_by_the_end_token(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard_tokens: int
) -> None:
    non_empty = [text for text in texts if text]
    if not non_empty:
        return
    corpus = build(source_of(texts), "bytes", tmp_path_factory.mktemp("c") / "c", shard_tokens=shard_tokens, show=False)
    expected = [i for text in non_empty for i in (*text.encode(), 256)]
    assert all_tokens(corpus) == expected
    index = corpus.index
    assert (index.tokens, index.documents) == (len(expected), len(non_empty))
    assert index.text_bytes == sum(len(text.encode()) for text in non_empty)
    assert [file.size for file in index.files[1:-1]] == [2 * shard_tokens] * (len(index.files) - 2)
    for start in range(0, len(expected), 7):
        assert corpus.read(start, min(start + 5, len(expected))).tolist() == expected[start : start + 5]


def test_the_number_of_workers_does_not_change_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_CHUNK", 300)
    texts = [f"def f{i}(x):\n    return x + {i}\n" * (i % 7 + 1) for i in range(60)]
    tokenizer = bpe.train(texts, vocab_size=280)
    sequential = build(source_of(texts), tokenizer, tmp_path / "sequential", workers=1, show=False)
    parallel = build(source_of(texts), tokenizer, tmp_path / "parallel", workers=3, show=False)
    assert sequential.index == parallel.index
    assert all_tokens(sequential) == all_tokens(parallel)
    assert tokenizer.decode(all_tokens(sequential)) == "".join(texts)


class Dies(Bytes):
    """Works in this process. A worker process exits when it unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (3,)


def test_a_worker_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_CHUNK", 1)
    with refuses(r"a process that tokenizes with bytes died \(exit code 3\)"):
        build(source_of(["a"] * 20), Dies(), tmp_path / "c", workers=2, show=False)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_cannot_be_pickled_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LocalClass(Bytes):
        pass

    monkeypatch.setattr(shards, "_CHUNK", 1)
    with refuses("bytes cannot be sent to other processes .* pass workers=1"):
        build(source_of(["a", "b"]), LocalClass(), tmp_path / "c", workers=2, show=False)


def test_wide_ids(tmp_path: Path) -> None:
    class Wide(Bytes):
        vocab_size = 2**16 + 1
        end_id = 2**16

    corpus = build(source_of(["ab"]), Wide(), tmp_path / "c", show=False)
    assert all_tokens(corpus) == [97, 98, 2**16]
    assert corpus.index.dtype == "uint32"


def test_the_same_corpus_is_reused_and_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(["one", "two"])
    first = build(source, "bytes", tmp_path / "c", show=False)
    inode = (tmp_path / "c" / "shard-00000.bin").stat().st_ino
    assert build(source, Bytes(), tmp_path / "c", show=False).index == first.index
    assert (tmp_path / "c" / "shard-00000.bin").stat().st_ino == inode
    for other_source, tokenizer in ((source_of(["three"]), "bytes"), (source, "bpe:260")):
        with refuses(r"holds another corpus \(texts with bytes\)"):
            build(other_source, tokenizer, tmp_path / "c", show=False)
    (tmp_path / "d").mkdir()
    assert build(source, "bytes", tmp_path / "d", show=False).index == first.index
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine.txt").touch()
    with refuses("is not a corpus: it has no index.json"):
        build(source, "bytes", tmp_path / "e", show=False)


def test_a_concurrent_build_may_finish_first(tmp_path: Path) -> None:
    texts = ["one", "two"]

    class BuildsMeanwhile(Texts):
        def document(self, number: int) -> Document:
            if number == 1:
                build(source_of(texts), "bytes", tmp_path / "c", show=False)
            return super().document(number)

    source = source_of(texts)
    assert isinstance(source, Generated)
    source.recipe = BuildsMeanwhile(texts)
    assert all_tokens(build(source, "bytes", tmp_path / "c", show=False)) == all_tokens(open_corpus(tmp_path / "c"))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_prepare_uses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSIFT_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "a.txt"
    text.write_text("words and words\n\n" * 200)
    corpus = prepare(str(text), show=False)
    assert corpus.path.parent == tmp_path / "cache"
    assert prepare(str(text), "bytes", show=False).path == corpus.path
    small = prepare(str(text), "bpe:258", show=False)
    assert small.path != corpus.path
    assert prepare(str(text), "bpe:258", show=False).path == small.path
    assert small.tokenizer.name == "bpe:258"
    assert prepare(str(small.path)).tokenizer.hash == small.tokenizer.hash
    assert prepare(str(small.path), "bpe:258").index == small.index
    assert prepare(str(small.path), str(small.path)).index == small.index
    for tokenizer in ("bytes", Bytes(), "bpe:300"):
        with refuses("was built with bpe:258, not b"):
            prepare(str(small.path), tokenizer)
    text.write_text("other words\n\n" * 200)
    assert prepare(str(text), show=False).path != corpus.path


def test_location_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYSIFT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/keysift")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "keysift"


def test_refusals(tmp_path: Path) -> None:
    with refuses("texts holds no text"):
        build(source_of(["", ""]), "bytes", tmp_path / "c", show=False)
    with refuses("text 1: the text is not UTF-8: character 2"):
        build(source_of(["fine", "ab\ud800"]), "bytes", tmp_path / "c", show=False)
    with refuses("written bpe:SIZE, e.g. bpe:8192; got 'bpe:big'"):
        build(source_of(["a"]), "bpe:big", tmp_path / "c", show=False)
    with refuses("shard_tokens and workers must be at least 1, got 0 and None"):
        build(source_of(["a"]), "bytes", tmp_path / "c", shard_tokens=0, show=False)
    (tmp_path / "file").touch()
    with refuses("cannot be written"):
        build(source_of(["a"]), "bytes", tmp_path / "file" / "c", show=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_no_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with refuses("cannot be written .*; nothing was left behind"):
            build(source_of(["a" * 2**21]), "bytes", tmp_path / "c", show=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


BUILD = """
import sys
from pathlib import Path
from keysift.data import build, shards
shards._CHUNK = 20_000
print("ready", flush=True)
build("abcdigits:documents=1500", "bpe:262", Path(sys.argv[1]), workers=2, show=False)
"""


@pytest.mark.parametrize("moment", ["training", "writing", 0.1, 0.3, 0.6])
@pytest.mark.slow
def test_sigkill_leaves_no_partial_corpus(tmp_path: Path, moment: str | float) -> None:
    out = tmp_path / "c"
    command = [sys.executable, "-c", BUILD, str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    if isinstance(moment, float):
        time.sleep(moment)
    else:
        pattern = ".c.writing-*" if moment == "training" else ".c.writing-*/shard-00000.bin"
        while not list(tmp_path.glob(pattern)):
            time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if out.exists():
        open_corpus(out, verify="always")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert open_corpus(out, verify="always").index.documents == 1500
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_files_of_a_running_build_are_kept(tmp_path: Path) -> None:
    running = tmp_path / f".c.writing-{socket.gethostname()}-1-x"  # process 1 is running and is not this process
    running.mkdir()
    build(source_of(["a"]), "bytes", tmp_path / "c", show=False)
    assert running.is_dir()


def test_a_tokenizer_object(tmp_path: Path) -> None:
    tokenizer: Tokenizer = Bytes()
    assert all_tokens(build(source_of(["hi"]), tokenizer, tmp_path / "c", show=False)) == [104, 105, 256]


def test_a_corpus_larger_than_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses(r"abcdigits would take about [\d,.]+ GB and .* GB free; use less text"):
        build("abcdigits:documents=1000000000000000", "bytes", tmp_path / "c")
    with refuses("2 to 18 digits, got n_digits 1000000"):
        build("abcdigits:n_digits=1000000", "bytes", tmp_path / "c")
    (tmp_path / "a.txt").write_text("x" * 1000)
    usage = shutil.disk_usage(tmp_path)
    for free, fits in ((2000, True), (1999, False)):
        monkeypatch.setattr("keysift.data.shards.shutil.disk_usage", lambda _, free=free: usage._replace(free=free))
        if fits:
            build(str(tmp_path / "a.txt"), "bytes", tmp_path / f"c{free}")
        else:
            with refuses(r"would take about 2\.0 kB and .* has 2\.0 kB free"):
                build(str(tmp_path / "a.txt"), "bytes", tmp_path / f"c{free}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "c2000"]


def test_a_vocabulary_beyond_32_bits_is_refused(tmp_path: Path) -> None:
    with refuses("ids have 32 bits; got vocab_size 999999999999999999"):
        build("abcdigits:documents=3", f"bpe:{'9' * 18}", tmp_path / "c")


def test_sigkill_before_any_change_leaves_a_complete_corpus_or_none(tmp_path: Path) -> None:
    changes = 0
    for change in range(200):
        folder = tmp_path / str(change)
        folder.mkdir()

        def work(folder: Path = folder, change: int = change) -> None:
            remaining = change

            def on_change(event: str) -> None:
                nonlocal remaining
                if remaining == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                remaining -= 1

            watch_changes(folder, on_change)
            build("abcdigits:documents=30", "bytes", folder / "c", show=False)

        exit_code = run_forked(work)
        if (folder / "c").exists():
            assert open_corpus(folder / "c", verify="always").index.documents == 30
        assert build("abcdigits:documents=30", "bytes", folder / "c", show=False).index.documents == 30
        assert [path.name for path in folder.iterdir()] == ["c"]
        changes += 1
        if exit_code == 0:
            break
    assert exit_code == 0
    assert changes > 5, "too few changes were tested"


def test_a_concurrent_reader_sees_a_complete_corpus_or_none(tmp_path: Path) -> None:
    log, out = tmp_path / "seen", tmp_path / "place" / "c"

    def work() -> None:
        inside_reader = False

        def on_change(event: str) -> None:
            nonlocal inside_reader
            if inside_reader:  # the reader itself writes verified.json
                return
            inside_reader = True
            documents = open_corpus(out).index.documents if out.exists() else 0
            with log.open("a") as file:
                file.write(f"{documents}\n")
            inside_reader = False

        watch_changes(out.parent, on_change)
        build("abcdigits:documents=30", "bytes", out, show=False)
        on_change("the end")

    assert run_forked(work) == 0
    documents = [int(count) for count in log.read_text().split()]
    assert documents == sorted(documents), "first no corpus, then a complete one"
    assert set(documents) == {0, 30}
    assert documents.count(0) > 5, "too few changes were observed"


def test_a_cache_that_cannot_be_written_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x" * 1000)
    (tmp_path / "home").touch()
    monkeypatch.delenv("KEYSIFT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with refuses("cache folder .*home/.cache/keysift cannot be created .*; set KEYSIFT_CACHE to a folder"):
        prepare(str(tmp_path / "a.txt"), show=False)
    monkeypatch.setenv("KEYSIFT_CACHE", str(tmp_path / "cache"))
    corpus = prepare(str(tmp_path / "a.txt"), show=False)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert prepare(str(tmp_path / "a.txt"), show=False).path == corpus.path, "a read-only cache can be read"
    with refuses("the cache folder .* is read-only; set KEYSIFT_CACHE"):
        prepare("abcdigits:documents=3", show=False)
    monkeypatch.delenv("KEYSIFT_CACHE")
    monkeypatch.setattr("pathlib.Path.home", _no_home)
    with refuses(r"the cache needs a home folder \(none\); set KEYSIFT_CACHE"):
        prepare("abcdigits:documents=3", show=False)


def _no_home() -> Path:
    raise RuntimeError("none")

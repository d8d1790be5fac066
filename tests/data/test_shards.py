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

from keysift.data import Bytes, Corpus, Document, Tokenizer, bpe, build, open_corpus, prepare, shards
from keysift.data.shards import cache_folder
from keysift.data.sources import Generated, Source
from tests.refusals import refuses
from tests.train.crash_points import child, watch


class Texts:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.documents = len(texts)

    def document(self, number: int) -> Document:
        return Document(f"text {number}", self.texts[number])


def of(texts: list[str]) -> Source:
    class Listed(Generated):
        def identity(self) -> dict[str, object]:
            return {"texts": texts}

    return Listed("texts", Texts(texts))


def everything(corpus: Corpus) -> list[int]:
    return [int(i) for i in corpus.read(0, corpus.index.tokens)]


@settings(max_examples=30)
@given(st.lists(st.text(alphabet="ab é\n", max_size=40), min_size=1, max_size=12), st.integers(1, 50))
def test_documents_joined_by_the_end_token(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard_tokens: int
) -> None:
    kept = [text for text in texts if text]
    if not kept:
        return
    corpus = build(of(texts), "bytes", tmp_path_factory.mktemp("c") / "c", shard_tokens=shard_tokens, show=False)
    wanted = [i for text in kept for i in (*text.encode(), 256)]
    assert everything(corpus) == wanted
    index = corpus.index
    assert (index.tokens, index.documents) == (len(wanted), len(kept))
    assert index.text_bytes == sum(len(text.encode()) for text in kept)
    assert [file.size for file in index.files[1:-1]] == [2 * shard_tokens] * (len(index.files) - 2)
    for start in range(0, len(wanted), 7):
        assert corpus.read(start, min(start + 5, len(wanted))).tolist() == wanted[start : start + 5]


def test_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_CHUNK", 300)
    texts = [f"def f{i}(x):\n    return x + {i}\n" * (i % 7 + 1) for i in range(60)]
    tokenizer = bpe.train(texts, vocab_size=280)
    one = build(of(texts), tokenizer, tmp_path / "one", workers=1, show=False)
    three = build(of(texts), tokenizer, tmp_path / "three", workers=3, show=False)
    assert one.index == three.index
    assert everything(one) == everything(three)
    assert tokenizer.decode(everything(one)) == "".join(texts)


class Dies(Bytes):
    """Encodes here, and ends the worker process it is sent to."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (3,)


def test_a_worker_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_CHUNK", 1)
    with refuses(r"a process tokenising with bytes died \(exit code 3\)"):
        build(of(["a"] * 20), Dies(), tmp_path / "c", workers=2, show=False)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_cannot_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Here(Bytes):
        pass

    monkeypatch.setattr(shards, "_CHUNK", 1)
    with refuses("bytes cannot be sent to other processes .* pass workers=1"):
        build(of(["a", "b"]), Here(), tmp_path / "c", workers=2, show=False)


def test_wide_ids(tmp_path: Path) -> None:
    class Wide(Bytes):
        vocab_size = 2**16 + 1
        end_id = 2**16

    corpus = build(of(["ab"]), Wide(), tmp_path / "c", show=False)
    assert everything(corpus) == [97, 98, 2**16]
    assert corpus.index.dtype == "uint32"


def test_the_same_is_reused_and_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = of(["one", "two"])
    first = build(source, "bytes", tmp_path / "c", show=False)
    before = (tmp_path / "c" / "shard-00000.bin").stat().st_ino
    assert build(source, Bytes(), tmp_path / "c", show=False).index == first.index
    assert (tmp_path / "c" / "shard-00000.bin").stat().st_ino == before
    for other, tokenizer in ((of(["three"]), "bytes"), (source, "bpe:260")):
        with refuses(r"holds another corpus \(texts with bytes\)"):
            build(other, tokenizer, tmp_path / "c", show=False)
    (tmp_path / "d").mkdir()
    assert build(source, "bytes", tmp_path / "d", show=False).index == first.index
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine.txt").touch()
    with refuses("is not a corpus: it has no index.json"):
        build(source, "bytes", tmp_path / "e", show=False)


def test_another_process_may_finish_first(tmp_path: Path) -> None:
    texts = ["one", "two"]

    class Slow(Texts):
        def document(self, number: int) -> Document:
            if number == 1:
                build(of(texts), "bytes", tmp_path / "c", show=False)
            return super().document(number)

    late = of(texts)
    assert isinstance(late, Generated)
    late.recipe = Slow(texts)
    assert everything(build(late, "bytes", tmp_path / "c", show=False)) == everything(open_corpus(tmp_path / "c"))
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
    for wanted in ("bytes", Bytes(), "bpe:300"):
        with refuses("was made with bpe:258, not b"):
            prepare(str(small.path), wanted)
    text.write_text("other words\n\n" * 200)
    assert prepare(str(text), show=False).path != corpus.path


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYSIFT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/keysift")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "keysift"


def test_refusals(tmp_path: Path) -> None:
    with refuses("texts holds no text at all"):
        build(of(["", ""]), "bytes", tmp_path / "c", show=False)
    with refuses("text 1: the text is not UTF-8: character 2"):
        build(of(["fine", "ab\ud800"]), "bytes", tmp_path / "c", show=False)
    with refuses("written bpe:SIZE, e.g. bpe:8192; got 'bpe:big'"):
        build(of(["a"]), "bpe:big", tmp_path / "c", show=False)
    with refuses("shard_tokens and workers must be at least 1, got 0 and None"):
        build(of(["a"]), "bytes", tmp_path / "c", shard_tokens=0, show=False)
    (tmp_path / "file").touch()
    with refuses("cannot be written"):
        build(of(["a"]), "bytes", tmp_path / "file" / "c", show=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with refuses("cannot be written .*; nothing was left behind"):
            build(of(["a" * 2**21]), "bytes", tmp_path / "c", show=False)
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
def test_kill_9_leaves_no_half_corpus(tmp_path: Path, moment: str | float) -> None:
    out = tmp_path / "c"
    command = [sys.executable, "-c", BUILD, str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    if isinstance(moment, float):
        time.sleep(moment)
    else:
        awaited = ".c.writing-*" if moment == "training" else ".c.writing-*/shard-00000.bin"
        while not list(tmp_path.glob(awaited)):
            time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if out.exists():
        open_corpus(out, verify="always")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert open_corpus(out, verify="always").index.documents == 1500
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_build_under_way_elsewhere_is_left_alone(tmp_path: Path) -> None:
    running = tmp_path / f".c.writing-{socket.gethostname()}-1-x"  # process 1 is alive and not ours
    running.mkdir()
    build(of(["a"]), "bytes", tmp_path / "c", show=False)
    assert running.is_dir()


def test_a_tokenizer_of_ones_own(tmp_path: Path) -> None:
    tokenizer: Tokenizer = Bytes()
    assert everything(build(of(["hi"]), tokenizer, tmp_path / "c", show=False)) == [104, 105, 256]


def test_what_cannot_fit_is_refused_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses(r"abcdigits would take about [\d,.]+ GB and .* GB free; ask for less"):
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
            with refuses("would take about"):
                build(str(tmp_path / "a.txt"), "bytes", tmp_path / f"c{free}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "c2000"]


def test_a_vocabulary_beyond_32_bits(tmp_path: Path) -> None:
    with refuses("ids have 32 bits; got vocab_size 999999999999999999"):
        build("abcdigits:documents=3", f"bpe:{'9' * 18}", tmp_path / "c")


def test_killed_at_any_moment_a_build_leaves_a_whole_corpus_or_none(tmp_path: Path) -> None:
    moments = 0
    for moment in range(200):
        folder = tmp_path / str(moment)
        folder.mkdir()

        def work(folder: Path = folder, moment: int = moment) -> None:
            left = moment

            def see(event: str) -> None:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

            watch(folder, see)
            build("abcdigits:documents=30", "bytes", folder / "c", show=False)

        ended = child(work)
        if (folder / "c").exists():
            assert open_corpus(folder / "c", verify="always").index.documents == 30
        assert build("abcdigits:documents=30", "bytes", folder / "c", show=False).index.documents == 30
        assert [path.name for path in folder.iterdir()] == ["c"]
        moments += 1
        if ended == 0:
            break
    assert ended == 0
    assert moments > 5, "too few moments were tried"


def test_a_reader_between_any_two_changes_meets_a_whole_corpus_or_none(tmp_path: Path) -> None:
    seen, out = tmp_path / "seen", tmp_path / "place" / "c"

    def work() -> None:
        reading = False

        def see(event: str) -> None:
            nonlocal reading
            if reading:  # the reader notes beside the corpus that its hashes were right
                return
            reading = True
            found = open_corpus(out).index.documents if out.exists() else 0
            with seen.open("a") as file:
                file.write(f"{found}\n")
            reading = False

        watch(out.parent, see)
        build("abcdigits:documents=30", "bytes", out, show=False)
        see("the end")

    assert child(work) == 0
    found = [int(count) for count in seen.read_text().split()]
    assert found == sorted(found), "first none, then all"
    assert set(found) == {0, 30}
    assert found.count(0) > 5, "too few changes were seen"

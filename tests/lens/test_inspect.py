"""`inspect` of our own models: planted heads are named, watching changes nothing, records survive the disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from keysift import lens
from keysift.data.recall import Recall
from keysift.lens import record as records
from keysift.lens.collect import Collector
from keysift.lens.examine import inspect
from keysift.lens.ours import Ours
from keysift.models.multiscreen import MultiscreenConfig
from tests.lens.subjects import LINE, multiscreen, planted, transformer
from tests.models.checks import opened
from tests.refusals import refuses


def test_planted_heads_are_named() -> None:
    subject = transformer(("softmax", "relu_exp"))
    unplanted = inspect(subject, [LINE])
    with planted(subject):
        record = inspect(subject, [LINE])
    assert record.head(0, 0).kinds == ("sink",)
    assert record.head(0, 1).kinds == ("uniform",)
    assert record.head(0, 2).kinds == ("previous token",)
    assert record.head(0, 3).kinds == unplanted.head(0, 3).kinds
    assert all("threshold" in record.head(1, head).kinds for head in range(4))
    for head, kind in ((0, "sink"), (1, "uniform"), (2, "previous token")):
        assert kind not in unplanted.head(0, head).kinds
    values = record.head(0, 1).values
    assert values["entropy_share"] == pytest.approx(1)
    assert values["fading_exponent"] == pytest.approx(1), "the largest weight of a uniform head is 1/n"
    assert record.head(0, 0).values["fading_exponent"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "subject", [multiscreen(), transformer(), transformer("differential_v1")], ids=lambda s: s.about.name
)
def test_looking_changes_no_bit(subject: object) -> None:
    texts = [list(LINE.encode()), list(LINE[:20].encode())]
    before = subject.run(texts, lambda reading: None)  # type: ignore[attr-defined]
    collector = Collector(len(texts[0]))
    after = subject.run(texts, collector.visit)  # type: ignore[attr-defined]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    torch.testing.assert_close(before[0], subject.model(torch.tensor(texts[:1]))[0], rtol=1e-5, atol=1e-5)  # type: ignore[attr-defined]


def test_an_output_from_the_blocks_is_the_models_own() -> None:
    for subject in (multiscreen(), transformer(), transformer("differential_v1")):
        texts = [list(LINE.encode()), list(LINE[:20].encode())]
        before = subject.run(texts, lambda reading: None)
        own = subject.run(texts, lambda reading: reading.output(lambda block: block.weights_HTS))
        gone = subject.run(texts, lambda reading: reading.output(lambda block: 0 * block.weights_HTS))
        for x, y, z in zip(before, own, gone, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
            assert not torch.allclose(x, z, atol=1e-2)


def test_a_batch_says_what_its_texts_say() -> None:
    subject = transformer()
    texts = {"one": LINE, "two": LINE[:20]}
    alone, together = (inspect(subject, texts, batch=batch) for batch in (1, 2))
    assert [text.name for text in together.texts] == ["one", "two"]
    for x, y in zip(alone.heads, together.heads, strict=True):
        assert [v is None for v in x.values.values()] == [v is None for v in y.values.values()]
        some = {n: v for n, v in x.values.items() if v is not None}
        assert {n: y.values[n] for n in some} == pytest.approx(some, rel=2e-3, abs=2e-5)
    named = [record.tests["absolute_percentile"]["only_relatively_bright"] for record in (alone, together)]
    assert [(f["text"], f["query"], f["key"]) for f in named[0]] == [
        (f["text"], f["query"], f["key"]) for f in named[1]
    ]
    assert {f["text"] for f in named[0]} == {0, 1}


def test_records_survive_the_disk_and_need_no_torch(tmp_path: Path) -> None:
    record = inspect(multiscreen(), [LINE])
    file = tmp_path / "record.json"
    record.save(file)
    again = records.load(file)
    assert again.to_json() == record.to_json()
    assert again.model == record.model
    code = (
        f"import sys; from keysift import lens; r = lens.load({str(file)!r}); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; print(len(r.heads))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "6"


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    with refuses("record.json is not a lens record"):
        records.load(file)
    file.write_text("[]")
    with refuses('it must say "format": "keysift-lens"'):
        records.load(file)
    file.write_text(json.dumps({"format": "keysift-lens", "version": 7}))
    with refuses("has version 7, this keysift reads 1"):
        records.load(file)
    file.write_text(json.dumps({"format": "keysift-lens", "version": 1}))
    with refuses("is not a whole lens record"):
        records.load(file)
    with refuses("module 'keysift.lens' has no attribute 'look'", AttributeError):
        _ = lens.look


def test_what_cannot_be_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keysift.lens.examine.calibrate", lambda *_: pytest.fail("the work has begun"))
    subject = transformer()
    for name, value in (("batch", 0), ("sample", -1), ("tokens", 1)):
        with refuses(f"{name} must be at least .*, got {value}"):
            inspect(subject, [LINE], **{name: value})
    with refuses("no mechanism is called 'nonsense'"):
        inspect(subject, [LINE], swap=["relu", "nonsense"])
    with refuses("screening cannot weigh this model's scores"):
        inspect(subject, [LINE], swap=["screening"])


def test_a_model_of_recall_is_read_by_the_answers_it_is_asked_for() -> None:
    """It predicts values at queries and nowhere else, and knows no sentence that could be unrelated."""
    task = Recall(letters=6, values=4, length=32, queries=4)
    config = MultiscreenConfig(vocab_size=task.tokenizer.vocab_size, depth=2, tiles=2, width=16)
    subject = Ours(opened(config), task.tokenizer, "recall")
    tokens, targets = task.row(3)
    assert subject.targets(tokens.tolist()) == targets.tolist()
    text = task.tokenizer.decode(tokens.tolist())
    record = inspect(subject, [text])
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(
            subject.model(torch.tensor([tokens.tolist()]))[0], torch.tensor(targets)
        )
    assert record.texts[0].loss == pytest.approx(float(wanted), rel=1e-5)
    assert record.tests["leave_out"]["loss"] == pytest.approx(float(wanted), rel=1e-5)
    carried = Recall(hops=2, letters=6, values=4, length=32, queries=4).tokenizer
    assert carried.answers([0, 1]) is None, "with two hops the next token is the answer"


def test_two_tokens_are_enough() -> None:
    record = inspect(transformer(), ["ab", LINE])
    assert record.tests["dilution"]["span"] == 2


def test_texts_no_model_can_read_are_refused() -> None:
    with refuses(r"text 1 has 1 token\(s\); attention and loss need at least 2"):
        inspect(multiscreen(), ["x"])

"""`inspect` of keysift models: head kinds, unchanged logits, and records on disk."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from keysift import lens
from keysift.data.tasks.recall import Recall
from keysift.data.tokenizers.bytes import Bytes
from keysift.lens.collector import Collector
from keysift.lens.inspection import inspect
from keysift.lens.keysift_model import KeysiftModel
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.transformer import TransformerConfig
from keysift.records import lens as records
from tests.lens.models import LINE, multiscreen, planted, transformer
from tests.models.checks import perturbed_multiscreen, perturbed_transformer
from tests.refusals import refuses


def test_kinds_of_planted_heads() -> None:
    model = transformer(("softmax", "relu_exp"))
    unplanted = inspect(model, [LINE])
    with planted(model):
        record = inspect(model, [LINE])
    assert len(record.head(0, 0).kinds) == 1
    assert "sink" in record.head(0, 0).kinds[0]
    assert record.head(0, 1).kinds == ("uniform",)
    assert record.head(0, 2).kinds == ("previous token",)
    assert record.head(0, 3).kinds == unplanted.head(0, 3).kinds
    assert all("threshold" in record.head(1, head).kinds for head in range(4))
    for head in range(3):
        assert not set(record.head(0, head).kinds) & set(unplanted.head(0, head).kinds)
    values = record.head(0, 1).values
    assert values["entropy_share"] == pytest.approx(1)
    assert values["fading_exponent"] == pytest.approx(1), "the largest weight of a uniform head is 1/n"
    assert record.head(0, 0).values["fading_exponent"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "model", [multiscreen(), transformer(), transformer("differential_v1")], ids=lambda s: s.info.name
)
def test_visiting_leaves_logits_bit_identical(model: object) -> None:
    texts = [list(LINE.encode()), list(LINE[:20].encode())]
    before = model.run(texts, lambda view: None)  # type: ignore[attr-defined]
    collector = Collector(len(texts[0]))
    after = model.run(texts, collector.visit)  # type: ignore[attr-defined]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    torch.testing.assert_close(before[0], model.model(torch.tensor(texts[:1]))[0], rtol=1e-5, atol=1e-5)  # type: ignore[attr-defined]


def test_output_from_blocks_equals_the_layer_output() -> None:
    for model in (multiscreen(), transformer(), transformer("differential_v1")):
        texts = [list(LINE.encode()), list(LINE[:20].encode())]
        before = model.run(texts, lambda view: None)
        rebuilt = model.run(texts, lambda view: view.output(lambda block: block.weights_HTS))
        zeroed = model.run(texts, lambda view: view.output(lambda block: 0 * block.weights_HTS))
        for x, y, z in zip(before, rebuilt, zeroed, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
            assert not torch.allclose(x, z, atol=1e-2)


POSITIONS = [
    {"mechanism": "softmax", "position": "alibi"},
    {"mechanism": "differential_v1", "position": "alibi", "window": (7, 0), "kept": 2},
    {"mechanism": ("forgetting", "stick_breaking"), "position": "none", "window": (0, 9)},
    {"mechanism": "forgetting+output_norm+output_gate", "position": "none", "shift": "both"},
    {"mechanism": ("tda", "lssar"), "position": ("rope", "none"), "window": 9},
    {"mechanism": ("elastic_softmax", "stick_breaking_learned"), "position": ("alibi", "none")},
    {"mechanism": ("asentmax", "null_value")},
]


@pytest.mark.parametrize("change", POSITIONS, ids=str)
def test_blocks_of_layers_with_windows_slopes_and_gates(change: dict[str, Any]) -> None:
    """Their weights are those of the model: the logits do not change if every output is computed from them."""
    config = TransformerConfig(vocab_size=257, depth=2, heads=4, width=32, **change)
    model = KeysiftModel(perturbed_transformer(config), Bytes(), "tiny transformer")
    texts = [list(LINE.encode()), list(LINE[:20].encode())]
    before = model.run(texts, lambda view: None)
    rebuilt = model.run(texts, lambda view: view.output(lambda block: block.weights_HTS))
    for x, y in zip(before, rebuilt, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_batched_texts_give_the_same_record() -> None:
    model = transformer()
    texts = {"one": LINE, "two": LINE[:20]}
    alone, batched = (inspect(model, texts, batch=batch) for batch in (1, 2))
    assert [text.name for text in batched.texts] == ["one", "two"]
    for x, y in zip(alone.heads, batched.heads, strict=True):
        assert [v is None for v in x.values.values()] == [v is None for v in y.values.values()]
        defined = {n: v for n, v in x.values.items() if v is not None}
        assert {n: y.values[n] for n in defined} == pytest.approx(defined, rel=2e-3, abs=2e-5)
    examples = [record.tests["absolute_percentile"]["only_relatively_bright"] for record in (alone, batched)]
    assert [(f["text"], f["query"], f["key"]) for f in examples[0]] == [
        (f["text"], f["query"], f["key"]) for f in examples[1]
    ]
    assert {f["text"] for f in examples[0]} == {0, 1}


def test_records_round_trip_without_torch(tmp_path: Path) -> None:
    record = inspect(multiscreen(), [LINE])
    file = tmp_path / "record.json"
    record.save(file)
    loaded = records.load(file)
    assert loaded.to_json() == record.to_json()
    assert loaded.model == record.model
    code = (
        f"import sys; from keysift import lens; r = lens.load({str(file)!r}); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; print(len(r.heads))"
    )
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert process.stdout.strip() == "6"


def test_invalid_records_raise(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    with refuses("record.json is not a lens record"):
        records.load(file)
    file.write_text("[]")
    with refuses('it must say "format": "keysift-lens"'):
        records.load(file)
    file.write_text(json.dumps({"format": "keysift-lens", "version": 7}))
    with refuses("has version 7, this keysift reads 1 to 2"):
        records.load(file)
    file.write_text(json.dumps({"format": "keysift-lens", "version": 1}))
    with refuses("is not a complete lens record"):
        records.load(file)
    with refuses("module 'keysift.lens' has no attribute 'look'", AttributeError):
        _ = lens.look


def test_invalid_arguments_raise_before_any_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keysift.lens.inspection.calibrate", lambda *_: pytest.fail("calibration has started"))
    model = transformer()
    for name, value in (("batch", 0), ("sample", -1), ("tokens", 1)):
        with refuses(f"{name} must be at least .*, got {value}"):
            inspect(model, [LINE], **{name: value})
    with refuses("no mechanism is called 'nonsense'"):
        inspect(model, [LINE], swap=["relu", "nonsense"])
    with refuses("screening cannot weigh this model's scores"):
        inspect(model, [LINE], swap=["screening"])


def test_loss_of_a_recall_model_is_that_of_the_answers() -> None:
    """Only answers have targets, and unrelated text consists of random symbols of the task."""
    task = Recall(letters=6, values=4, length=32, queries=4)
    config = MultiscreenConfig(vocab_size=task.tokenizer.vocab_size, depth=2, tiles=2, width=16)
    model = KeysiftModel(perturbed_multiscreen(config), task.tokenizer, "recall")
    tokens, targets = task.row(3)
    assert model.targets(tokens.tolist()) == targets.tolist()
    text = task.tokenizer.decode(tokens.tolist())
    record = inspect(model, [text])
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(
            model.model(torch.tensor([tokens.tolist()]))[0], torch.tensor(targets)
        )
    assert record.texts[0].loss == pytest.approx(float(expected), rel=1e-5)
    assert record.tests["leave_out"]["loss"] == pytest.approx(float(expected), rel=1e-5)
    two_hops = Recall(hops=2, letters=6, values=4, length=32, queries=4).tokenizer
    assert two_hops.answers([0, 1]) is None, "with two hops the next token is the answer"


def test_text_of_two_tokens() -> None:
    record = inspect(transformer(), ["ab", LINE])
    assert record.tests["dilution"]["span"] == 2


def test_too_short_or_too_long_texts_raise() -> None:
    with refuses(r"text 1 has 1 token\(s\); attention and loss need at least 2"):
        inspect(multiscreen(), ["x"])


class DropsFirstSpace(Bytes):
    """Decodes like SentencePiece: the first token of a decoded sequence loses its leading space."""

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids).removeprefix(" ")


def test_tokens_of_queries_and_keys_keep_their_leading_space() -> None:
    model = transformer()
    model.tokenizer = DropsFirstSpace()
    assert "".join(model.pieces(list(LINE.encode()))) == LINE
    examples = inspect(model, [LINE]).tests["absolute_percentile"]["only_relatively_bright"]
    for example in examples:
        tokens = (example["query_token"], example["key_token"])
        assert tokens == (LINE[example["query"]], LINE[example["key"]])
    assert any(example["query_token"] == " " for example in examples), "no example has a space as its query"


def test_bits_per_byte_of_a_text() -> None:
    """A byte is a token here, so bits per byte are the loss in bits."""
    record = inspect(transformer(), [LINE], tests=False)
    assert record.texts[0].bits_per_byte == pytest.approx(record.texts[0].loss / math.log(2))
    assert record.texts[0].beginning == LINE[:40]


def test_keys_of_pointwise_heads_are_never_only_relatively_bright() -> None:
    """A weight that no competing key can change is not large because the competing keys are weaker."""
    record = inspect(multiscreen(), [LINE])
    assert all(head.values["bright"] is not None for head in record.heads)
    assert all(head.values["only_relatively_bright"] is None for head in record.heads)
    assert record.tests["absolute_percentile"]["only_relatively_bright"] == []
    assert not any("unrelated text" in finding.sentence for finding in record.findings)

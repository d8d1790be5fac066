"""Decoding a Llama in turns with transformers, at a tiny shape."""

import json
from dataclasses import replace

import pytest
import torch

from keysift.bench.collector import Collector
from keysift.bench.decode import llama
from keysift.bench.decode import times as decode
from keysift.cli.main import _main
from keysift.core.errors import DisagreementError, UnsupportedError
from keysift.hub.llama import TransformersLlama
from keysift.models.architecture import TransformerArch
from keysift.models.registry import build, configure
from keysift.nn.decode_step import through_modules
from keysift.runs import machine
from tests.refusals import refuses

TINY = llama.Shape(
    vocabulary=40,
    width=16,
    depth=2,
    heads=2,
    hidden_width=24,
    context=32,
    prompt=4,
    tokens=2,
    rounds=2,
    read_megabytes=1,
)


def test_bench_decode_compares_each_dtype_with_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decode, "QUICK", replace(decode.QUICK, llama=TINY, tokens=22, psi=2))
    monkeypatch.setattr(decode, "WARM", 2)
    monkeypatch.setattr(decode, "SHORT", 3)
    assert _main(["bench", "decode", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    rows = [row for row in result["rows"] if row["what"].startswith("Llama")]
    assert [row["against"] for row in rows] == [f"transformers in {name}" for name in ("fp32", "bf16", "fp16")]
    assert all(row["tokens_per_s"] > 0 and row["read_share"] > 0 for row in rows)
    assert [target["target"] for target in result["targets"][:6]] == [2.5, 0.7, 4.0, 0.7, 4.0, 0.7]


def test_parts_of_a_token_without_the_library() -> None:
    with through_modules():
        parts = llama.time_parts(llama.OurText(llama.build_model(TINY, torch.float32)), TINY)
    assert parts["library"] == 0
    assert 0 < parts["largest"] < parts["token"]


def test_a_peer_with_other_logits_is_not_timed() -> None:
    model = llama.build_model(TINY, torch.float32)
    other = TransformersLlama(model)
    with torch.no_grad():
        other._llama.model.norm.weight.mul_(1.001)
    with refuses("logits differ from those of transformers by .* of the largest", DisagreementError):
        llama.check_peer({"ours": llama.OurText(model), "theirs": other}, TINY)
    results = Collector(machine.examine(), lambda line: None)
    with refuses("logits differ from those of transformers", DisagreementError):
        llama.measure_llama(results, TINY, lambda model: other)


def test_a_model_that_is_not_a_llama_has_no_peer() -> None:
    model = build(configure(TransformerArch(depth=1, heads=2, width=8), vocab_size=9, context=8))
    with refuses("must be a Transformer with tied_embeddings and final_gain; set both", UnsupportedError):
        TransformersLlama(model)

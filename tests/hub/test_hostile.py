"""Directories of models that others made: refused in one line before memory is taken, and nothing in them runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from keysift.hub.subject import open_pretrained
from tests.fuzz.material import MARKER, payloads
from tests.hub.models import WORDS, saved
from tests.refusals import refuses

WEIGHTS = "model.safetensors"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return saved(tmp_path / "theirs", "gpt2")


def says(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_layer": 10**9}, "describes a model of 1000000000 layers, more than its weights can hold"),
        ({"n_layer": 5}, "describes a model of 5 layers, more than its weights can hold"),
        ({"vocab_size": 10**12}, "more than its weights can hold .28 tensors, 28,000 numbers"),
        ({"n_embd": 10**9}, "theirs is not a model that transformers can read"),
        ({"n_head": 0}, "is not a model that transformers can read .*division"),
        ({"n_layer": "two"}, "is not a model that transformers can read .*n_layer"),
        ({"architectures": 7}, "config.json does not describe a model"),
    ],
    ids=str,
)
def test_sizes_that_the_weights_deny(theirs: Path, changes: dict[str, Any], match: str) -> None:
    says(theirs, **changes)
    with refuses(match):
        open_pretrained(str(theirs))


def test_no_number_is_made_up_for_a_missing_weight(theirs: Path) -> None:
    weights = load_file(theirs / WEIGHTS)
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, theirs / WEIGHTS, metadata={"format": "pt"})
    with refuses("lacks 1 of its weights, transformer.h.1.mlp.c_fc.weight among them"):
        open_pretrained(str(theirs))


def test_a_pipe_is_not_read(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes to it, so opening it would never return."""

    def opening(file: Path, **_: Any) -> None:
        assert file.is_file(), "it would hang here"

    monkeypatch.setattr("keysift.hub.subject.safe_open", opening)
    (theirs / WEIGHTS).unlink()
    os.mkfifo(theirs / WEIGHTS)
    with refuses("holds no .safetensors; weights in other formats are not read"):
        open_pretrained(str(theirs))


def code_of_its_own(path: Path, planted: list[bytes]) -> None:
    says(path, model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    (path / "evil.py").write_bytes(planted[-1])


def a_tokenizer_of_its_own(path: Path, planted: list[bytes]) -> None:
    told = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}}
    (path / "tokenizer_config.json").write_text(json.dumps(told))
    (path / "evil.py").write_bytes(planted[-1])


def weights_in_a_pickle(path: Path, planted: list[bytes]) -> None:
    (path / WEIGHTS).unlink()
    (path / "pytorch_model.bin").write_bytes(planted[0])


def a_pickle_named_safetensors(path: Path, planted: list[bytes]) -> None:
    (path / WEIGHTS).write_bytes(planted[0])


@pytest.mark.parametrize(
    ("plant", "match"),
    [
        (code_of_its_own, "contains custom code"),
        (a_tokenizer_of_its_own, None),
        (weights_in_a_pickle, "holds no .safetensors; weights in other formats are not read"),
        (a_pickle_named_safetensors, "is not a model that transformers can read .*header"),
    ],
)
def test_no_payload_runs(
    theirs: Path,
    tmp_path: Path,
    plant: Callable[[Path, list[bytes]], None],
    match: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(theirs, payloads(tmp_path / MARKER))
    # Nobody is asked either: transformers would, at the terminal.
    monkeypatch.setattr("builtins.input", lambda _: "y")
    if match is None:
        assert open_pretrained(str(theirs)).about.vocabulary == len(WORDS)
    else:
        with refuses(match):
            open_pretrained(str(theirs))
    assert not (tmp_path / MARKER).exists()


def test_a_config_chooses_no_kernel_to_download(theirs: Path) -> None:
    for name in ("attn_implementation", "_attn_implementation"):
        says(theirs, **{name: "somebody/kernel"})
        assert open_pretrained(str(theirs)).model.config._attn_implementation == "sdpa"

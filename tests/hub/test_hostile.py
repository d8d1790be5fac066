"""Untrusted model directories: errors come before memory is allocated, and no code in them runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from keysift.hub.lens_model import open_transformers_model
from tests.fuzz.inputs import MARKER, payloads
from tests.hub.transformers_models import WORDS, save_model
from tests.refusals import refuses

WEIGHTS = "model.safetensors"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return save_model(tmp_path / "untrusted", "gpt2")


def change_config(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_layer": 10**9}, "describes a model of 1000000000 layers, more than its weights can hold"),
        ({"n_layer": 5}, "describes a model of 5 layers, more than its weights can hold"),
        ({"vocab_size": 10**12}, "more than its weights can hold .28 tensors, 28,000 numbers"),
        ({"n_embd": 10**9}, "untrusted is not a model that transformers can read"),
        ({"n_head": 0}, "is not a model that transformers can read .*division"),
        ({"n_layer": "two"}, "is not a model that transformers can read .*n_layer"),
        ({"architectures": 7}, "config.json does not describe a model"),
    ],
    ids=str,
)
def test_config_that_does_not_match_the_weights_is_refused(
    model_dir: Path, changes: dict[str, Any], match: str
) -> None:
    change_config(model_dir, **changes)
    with refuses(match):
        open_transformers_model(str(model_dir))


def test_missing_weights_are_refused(model_dir: Path) -> None:
    weights = load_file(model_dir / WEIGHTS)
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, model_dir / WEIGHTS, metadata={"format": "pt"})
    with refuses("lacks 1 of its weights, transformer.h.1.mlp.c_fc.weight among them"):
        open_transformers_model(str(model_dir))


def test_a_named_pipe_is_not_opened(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe without a writer would block forever."""

    def checked_open(file: Path, **_: Any) -> None:
        assert file.is_file(), "opening a pipe blocks"

    monkeypatch.setattr("keysift.hub.lens_model.safe_open", checked_open)
    (model_dir / WEIGHTS).unlink()
    os.mkfifo(model_dir / WEIGHTS)
    with refuses("model.safetensors is a pipe or a device, which transformers would wait for; remove it"):
        open_transformers_model(str(model_dir))


def custom_model_code(path: Path, files: list[bytes]) -> None:
    change_config(path, model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    (path / "evil.py").write_bytes(files[-1])


def custom_tokenizer_code(path: Path, files: list[bytes]) -> None:
    content = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}}
    (path / "tokenizer_config.json").write_text(json.dumps(content))
    (path / "evil.py").write_bytes(files[-1])


def pickled_weights(path: Path, files: list[bytes]) -> None:
    (path / WEIGHTS).unlink()
    (path / "pytorch_model.bin").write_bytes(files[0])


def pickle_named_safetensors(path: Path, files: list[bytes]) -> None:
    (path / WEIGHTS).write_bytes(files[0])


@pytest.mark.parametrize(
    ("plant", "match"),
    [
        (custom_model_code, "contains custom code"),
        (custom_tokenizer_code, None),
        (pickled_weights, "has no .safetensors file; convert weights in other formats first"),
        (pickle_named_safetensors, "is not a model that transformers can read .*header"),
    ],
)
def test_no_payload_runs(
    model_dir: Path,
    tmp_path: Path,
    plant: Callable[[Path, list[bytes]], None],
    match: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(model_dir, payloads(tmp_path / MARKER))
    # transformers would ask on the terminal whether to run the code. Answer yes.
    monkeypatch.setattr("builtins.input", lambda _: "y")
    if match is None:
        assert open_transformers_model(str(model_dir)).info.vocabulary == len(WORDS)
    else:
        with refuses(match):
            open_transformers_model(str(model_dir))
    assert not (tmp_path / MARKER).exists()


def test_config_cannot_select_a_kernel_to_download(model_dir: Path) -> None:
    for name in ("attn_implementation", "_attn_implementation"):
        change_config(model_dir, **{name: "somebody/kernel"})
        assert open_transformers_model(str(model_dir)).model.config._attn_implementation == "sdpa"

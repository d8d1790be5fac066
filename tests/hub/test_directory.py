"""keysift and transformers load the same directory, and both explain what is wrong with a damaged one."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from keysift.data.tokenizers import bpe
from keysift.data.tokenizers.base import MARKER
from keysift.data.tokenizers.bytes import Bytes
from keysift.data.tokenizers.load import load_tokenizer
from keysift.models.save import load
from tests.hub.keysift_models import ARCHS, loaded, saved_model, small_model
from tests.refusals import refuses

TEXTS = ("hello", "é漢 <|endoftext|> x\n\n\t \x00\x7f", "", "  two  blanks", "<|endoftext|>")
TOKENS = torch.arange(60).view(2, 30)


@pytest.mark.parametrize(
    "name", ["multiscreen", *(pytest.param(n, marks=pytest.mark.slow) for n in ARCHS if n != "multiscreen")]
)
def test_saved_models_load_in_both(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = loaded(tmp_path / "a", name)
    expected = small_model(name)
    assert torch.equal(model(TOKENS).logits, expected(TOKENS))
    assert model.config.keysift == expected.config
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (expected.config.width, expected.config.depth)

    model.save_pretrained(tmp_path / "b")
    reloaded = load(tmp_path / "b")
    assert reloaded.config == expected.config
    assert torch.equal(reloaded(TOKENS), expected(TOKENS))
    assert AutoConfig.from_pretrained(tmp_path / "b").keysift == expected.config


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_tokenizers_give_the_same_ids(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    own = Bytes() if kind == "bytes" else bpe.train(["hello world, how are you? é漢"] * 3, 280)
    theirs = AutoTokenizer.from_pretrained(saved_model(tmp_path / "a", tokenizer=own))
    assert (len(theirs), theirs.eos_token_id, theirs.pad_token_id) == (own.vocab_size, own.end_id, own.end_id)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == own.encode(text)
        assert theirs.decode(own.encode(text)) == own.decode(own.encode(text)) == text
    assert theirs.decode([*own.encode("a"), own.end_id], skip_special_tokens=True) == "a"
    assert theirs(["a", "abc"], padding=True)["attention_mask"] == [[0, 0, 1], [1, 1, 1]]

    theirs.save_pretrained(tmp_path / "b")
    assert not (tmp_path / "b" / MARKER).exists()
    reloaded = load_tokenizer(tmp_path / "b")
    assert type(reloaded) is type(own)
    assert [reloaded.encode(text) for text in TEXTS] == [own.encode(text) for text in TEXTS]
    assert (reloaded.name, reloaded.end_id) == (own.name, own.end_id)


def test_generation_ends_at_the_end_token_of_the_tokenizer(tmp_path: Path) -> None:
    assert loaded(tmp_path).generation_config.eos_token_id == Bytes.end_id


def _edit(path: Path, **changes: Any) -> None:
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, **changes}))


def _weights(path: Path, change: Any) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def test_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    name = "layers.1.tiles.q_proj.weight"
    model = saved_model(tmp_path)
    config, weights = model / "config.json", model / "model.safetensors"
    original = {path: path.read_bytes() for path in (config, weights)}

    def open_and_restore() -> None:
        try:
            AutoModelForCausalLM.from_pretrained(model)
        finally:
            for path, content in original.items():
                path.write_bytes(content)

    _edit(config, depht=2)
    with refuses(r"MultiscreenConfig has no field 'depht'; did you mean 'depth'"):
        open_and_restore()
    _edit(config, tiles=4)
    with refuses(r"the weights do not fit config.json: layers.0.tiles.gating.* is \(.*\), the config says"):
        open_and_restore()
    weights.write_bytes(original[weights][:-100])
    with refuses(r"model.safetensors is not a complete safetensors file .*copy it again"):
        open_and_restore()
    weights.rename(model / "weights.safetensors")
    with refuses("has no weights; expected model.safetensors, or shards"):
        open_and_restore()
    _weights(weights, lambda weights: weights.pop(name))
    with refuses(rf"the weights do not fit config.json: {name} is missing; copy both files"):
        open_and_restore()
    _weights(weights, lambda weights: weights.update({"layers.1.tiles.query.weight": weights.pop(name)}))
    with refuses(rf"{name} is missing; layers.1.tiles.query.weight is not a weight of this model"):
        open_and_restore()
    config.write_bytes(original[config][:-20])
    with pytest.raises(OSError, match="not a valid JSON file"):
        open_and_restore()
    _edit(config, model_type="keysift_multiscren")
    with pytest.raises(ValueError, match="has model type `keysift_multiscren` but Transformers does not recognize"):
        open_and_restore()
    _edit(config, model_type="keysift_transformer")
    with refuses("TransformerConfig has no field 'tiles'"):
        open_and_restore()
    open_and_restore()


def test_keysift_classes_explain_a_damaged_config(tmp_path: Path) -> None:
    """Auto classes of transformers read config.json themselves and raise their own errors."""
    from keysift.hub import MultiscreenForCausalLM

    config = saved_model(tmp_path) / "config.json"
    whole = config.read_bytes()
    config.write_bytes(whole[:-20])
    with refuses("config.json is not JSON .*; was it cut short"):
        MultiscreenForCausalLM.from_pretrained(tmp_path)
    config.write_bytes(whole)
    _edit(config, model_type="keysift_multiscren")
    with refuses("'multiscren'; did you mean 'multiscreen'"):
        MultiscreenForCausalLM.from_pretrained(tmp_path)
    config.write_text('{"model_type": "llama"}')
    with refuses("is a Hugging Face model .llama.; import it with keysift import"):
        MultiscreenForCausalLM.from_pretrained(tmp_path)
    config.unlink()
    with refuses("config.json is missing; a model directory has"):
        MultiscreenForCausalLM.from_pretrained(tmp_path)


def test_shards(tmp_path: Path) -> None:
    from keysift.hub import MultiscreenForCausalLM

    model = loaded(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    files = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 1
    assert torch.equal(MultiscreenForCausalLM.from_pretrained(tmp_path / "shards")(TOKENS).logits, model(TOKENS).logits)
    assert torch.equal(load(tmp_path / "shards")(TOKENS), model(TOKENS).logits)
    files[-1].unlink()
    with refuses(rf"{files[-1].name} is missing; .*index.json lists {len(files)} files, copy them"):
        MultiscreenForCausalLM.from_pretrained(tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors.index.json").write_text("{}")
    with refuses("is not an index of weights"):
        MultiscreenForCausalLM.from_pretrained(tmp_path / "shards")


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    """config.json may refer to code in the directory; keysift classes are used, and the code is not run."""
    model = saved_model(tmp_path)
    (model / "modeling_evil.py").write_text("raise SystemExit('executed')\n")
    _edit(model / "config.json", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    from transformers import AutoModelForCausalLM

    from keysift.hub import MultiscreenForCausalLM

    assert type(AutoModelForCausalLM.from_pretrained(model)) is MultiscreenForCausalLM
    assert load(model).config == small_model("multiscreen").config


def test_unknown_config_fields_are_refused(tmp_path: Path) -> None:
    model = saved_model(tmp_path)
    _edit(model / "config.json", quantization_config={"bits": 4})
    with refuses("has no field 'quantization_config'"):
        load(model)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import keysift.hub

    monkeypatch.setitem(sys.modules, "transformers", None)
    with refuses(r"Hugging Face models need the extra \[hub\]; install it with pip install 'keysift\[hub\]'"):
        importlib.reload(keysift.hub)

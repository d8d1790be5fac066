"""One directory serves keysift and transformers, and a damaged one is refused with advice by both."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import keysift
from keysift.data import bpe
from keysift.data.tokenizer import MARKER, Bytes, load_tokenizer, save_tokenizer
from keysift.models.save import load, save
from tests.hub.ours import ARCHS, kept, loaded, small
from tests.refusals import refuses

TEXTS = ("hello", "é漢 <|endoftext|> x\n\n\t \x00\x7f", "", "  two  blanks", "<|endoftext|>")
TOKENS = torch.arange(60).view(2, 30)


@pytest.mark.parametrize(
    "name", ["multiscreen", *(pytest.param(n, marks=pytest.mark.slow) for n in ARCHS if n != "multiscreen")]
)
def test_both_read_what_either_writes(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = loaded(tmp_path / "a", name)
    own = small(name)
    assert torch.equal(model(TOKENS).logits, own(TOKENS))
    assert model.config.keysift == own.config
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (own.config.width, own.config.depth)

    model.save_pretrained(tmp_path / "b")
    again = load(tmp_path / "b")
    assert again.config == own.config
    assert torch.equal(again(TOKENS), own(TOKENS))
    assert AutoConfig.from_pretrained(tmp_path / "b").keysift == own.config


def test_a_directory_of_before_transformers_still_loads(tmp_path: Path) -> None:
    kept(tmp_path)
    path = tmp_path / "config.json"
    says = json.loads(path.read_text())
    assert says.pop("model_type") == "keysift_multiscreen"
    del says["architectures"]
    path.write_text(json.dumps({"model": "multiscreen", **says}))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / name).unlink()
    text = keysift.open(tmp_path)
    assert torch.equal(text.model(TOKENS), small("multiscreen")(TOKENS))
    assert text.tokenizer == Bytes()
    from transformers import AutoModelForCausalLM

    with pytest.raises(ValueError, match="model_type"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    # Saving it again is all it takes.
    save(text.model, tmp_path)
    save_tokenizer(text.tokenizer, tmp_path)
    assert json.loads(path.read_text())["model_type"] == "keysift_multiscreen"
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(TOKENS).logits, text.model(TOKENS))


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_tokenizers_give_the_same_ids(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    own = Bytes() if kind == "bytes" else bpe.train(["hello world, how are you? é漢"] * 3, 280)
    theirs = AutoTokenizer.from_pretrained(kept(tmp_path / "a", tokenizer=own))
    assert (len(theirs), theirs.eos_token_id, theirs.pad_token_id) == (own.vocab_size, own.end_id, own.end_id)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == own.encode(text)
        assert theirs.decode(own.encode(text)) == own.decode(own.encode(text)) == text
    assert theirs.decode([*own.encode("a"), own.end_id], skip_special_tokens=True) == "a"
    assert theirs(["a", "abc"], padding=True)["attention_mask"] == [[0, 0, 1], [1, 1, 1]]

    theirs.save_pretrained(tmp_path / "b")
    assert not (tmp_path / "b" / MARKER).exists()
    back = load_tokenizer(tmp_path / "b")
    assert type(back) is type(own)
    assert [back.encode(text) for text in TEXTS] == [own.encode(text) for text in TEXTS]
    assert (back.name, back.end_id) == (own.name, own.end_id)


def test_generation_ends_where_the_tokenizer_says(tmp_path: Path) -> None:
    assert loaded(tmp_path).generation_config.eos_token_id == Bytes.end_id


def _edit(path: Path, **changes: Any) -> None:
    says = json.loads(path.read_text())
    path.write_text(json.dumps({**says, **changes}))


def _weights(path: Path, change: Any) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def test_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    name = "layers.1.tiles.q_proj.weight"
    model = kept(tmp_path)
    config, weights = model / "config.json", model / "model.safetensors"
    whole = {path: path.read_bytes() for path in (config, weights)}

    def opened() -> None:
        try:
            AutoModelForCausalLM.from_pretrained(model)
        finally:
            for path, content in whole.items():
                path.write_bytes(content)

    _edit(config, depht=2)
    with refuses(r"MultiscreenConfig has no field 'depht'; did you mean 'depth'"):
        opened()
    _edit(config, tiles=4)
    with refuses(r"the weights of .* cannot be read or do not fit config.json .*mismatch"):
        opened()
    weights.write_bytes(whole[weights][:-100])
    with refuses(r"model.safetensors is not a whole safetensors file .*copy it again"):
        opened()
    weights.rename(model / "weights.safetensors")
    with refuses("holds no weights; expected model.safetensors, or its shards"):
        opened()
    _weights(weights, lambda held: held.pop(name))
    with refuses(rf"the weights do not fit config.json: {name} is missing; copy both files"):
        opened()
    _weights(weights, lambda held: held.update({"layers.1.tiles.query.weight": held.pop(name)}))
    with refuses(rf"{name} is missing; layers.1.tiles.query.weight is not a weight of this model"):
        opened()
    config.write_bytes(whole[config][:-20])
    with pytest.raises(OSError, match="not a valid JSON file"):
        opened()
    _edit(config, model_type="keysift_multiscren")
    with pytest.raises(ValueError, match="has model type `keysift_multiscren` but Transformers does not recognize"):
        opened()
    _edit(config, model_type="keysift_transformer")
    with refuses("TransformerConfig has no field 'tiles'"):
        opened()
    opened()


def test_a_class_of_ours_says_what_is_wrong_with_a_config(tmp_path: Path) -> None:
    """transformers' Auto classes read config.json themselves, and speak of it in words of their own."""
    from keysift.hub import MultiscreenForCausalLM

    config = kept(tmp_path) / "config.json"
    whole = config.read_bytes()
    config.write_bytes(whole[:-20])
    with refuses("config.json is not JSON .*; was it cut short"):
        MultiscreenForCausalLM.from_pretrained(tmp_path)
    config.write_bytes(whole)
    _edit(config, model_type="keysift_multiscren")
    with refuses("'multiscren'; did you mean 'multiscreen'"):
        MultiscreenForCausalLM.from_pretrained(tmp_path)
    config.write_text('{"model_type": "llama"}')
    with refuses("is a Hugging Face model .llama.; bring it here with keysift import"):
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
    with refuses(rf"{files[-1].name} is missing; .*index.json says that the model has {len(files)} files, copy them"):
        MultiscreenForCausalLM.from_pretrained(tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors.index.json").write_text("{}")
    with refuses("is not an index of weights"):
        MultiscreenForCausalLM.from_pretrained(tmp_path / "shards")


def test_nothing_of_a_checkpoint_is_executed(tmp_path: Path) -> None:
    """config.json may name code beside it; keysift's own classes are used, and the code stays unread."""
    model = kept(tmp_path)
    (model / "modeling_evil.py").write_text("raise SystemExit('executed')\n")
    _edit(model / "config.json", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    from transformers import AutoModelForCausalLM

    from keysift.hub import MultiscreenForCausalLM

    assert type(AutoModelForCausalLM.from_pretrained(model)) is MultiscreenForCausalLM
    assert load(model).config == small("multiscreen").config


def test_fields_that_keysift_does_not_know_are_refused_there_too(tmp_path: Path) -> None:
    model = kept(tmp_path)
    _edit(model / "config.json", quantization_config={"bits": 4})
    with refuses("has no field 'quantization_config'"):
        load(model)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import keysift.hub

    monkeypatch.setitem(sys.modules, "transformers", None)
    with refuses(r"Hugging Face models need the extra \[hub\]; install it with pip install 'keysift\[hub\]'"):
        importlib.reload(keysift.hub)

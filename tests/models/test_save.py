"""A directory holds a model: what is loaded is what was saved, and nothing broken is ever loaded or left behind."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from keysift.models.language import LanguageModel
from keysift.models.multiscreen import Multiscreen
from keysift.models.save import from_version_1, load, save
from keysift.models.transformer import TransformerConfig
from tests.models.checks import TINY, close, opened, shaken, tokens_for
from tests.refusals import refuses

HYBRID = TransformerConfig(
    vocab_size=9, depth=3, heads=4, width=16, mechanism=("differential_v1", "softmax+value_gate", "alpha_entmax")
)


@pytest.fixture(params=["multiscreen", "transformer", "bf16"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    if request.param == "transformer":
        return shaken(HYBRID)
    found = opened(dataclasses.replace(TINY, acceptance=0.875, position="rope"))
    return found.bfloat16() if request.param == "bf16" else found


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_what_is_loaded_is_what_was_saved(model: LanguageModel, tmp_path: Path) -> None:
    save(model, tmp_path / "new" / "run")
    found = load(tmp_path / "new" / "run")
    tokens = tokens_for(model, 2, 7)
    assert type(found) is type(model)
    assert found.config == model.config
    assert torch.equal(found(tokens), model(tokens))
    assert sorted(contents(tmp_path / "new" / "run")) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["run"]


def test_saving_again_keeps_the_other_files(tmp_path: Path) -> None:
    first, second = opened(TINY), opened(TINY, seed=1)
    run = tmp_path / "run"
    save(first, run)
    (run / "tokenizer.json").write_text("{}")
    (run / "logs").mkdir()
    (run / "logs" / "metrics.jsonl").write_text("1\n")
    save(second, run)
    assert (run / "tokenizer.json").read_text() == "{}"
    assert (run / "logs" / "metrics.jsonl").read_text() == "1\n"
    tokens = tokens_for(first, 1, 5)
    assert torch.equal(load(run)(tokens), second(tokens))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("fails", ["models.save.save_file", "core.disk.sync", "core.disk._swap"])
def test_a_save_that_fails_leaves_the_old_model(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    save(opened(TINY), run)
    before = contents(run)

    def full(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(f"keysift.{fails}", full)
    with pytest.raises(OSError, match="disk full"):
        save(opened(TINY, seed=1), run)
    assert contents(run) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "models" / "first")
    for seed in (0, 1):
        save(opened(TINY, seed=seed), tmp_path / "latest")
        tokens = tokens_for(opened(TINY), 1, 5)
        assert torch.equal(load(tmp_path / "latest")(tokens), opened(TINY, seed=seed)(tokens))
    assert (tmp_path / "latest").is_symlink()
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["first"]


def test_weights_of_several_types_become_the_widest(tmp_path: Path) -> None:
    save(opened(TINY), tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    halves = {name: tensor.bfloat16() if "proj" in name else tensor for name, tensor in state.items()}
    save_file(halves, tmp_path / "model.safetensors")
    found = load(tmp_path)
    assert {parameter.dtype for parameter in found.parameters()} == {torch.float32}
    assert torch.equal(found.state_dict()["embedding.weight"], state["embedding.weight"])
    found(tokens_for(found, 1, 5))


def test_files_that_are_not_a_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with refuses(r"config.json is missing; a model directory has"):
        load(run)
    save(opened(TINY), run)
    whole = contents(run)

    def broken(name: str, data: bytes, match: str) -> None:
        (run / name).write_bytes(data)
        now = contents(run)
        with refuses(match):
            load(run)
        assert contents(run) == now
        (run / name).write_bytes(whole[name])

    broken("config.json", whole["config.json"][:20], "config.json is not JSON")
    broken("config.json", b"\xff\xfe", "config.json is not JSON")
    broken("config.json", b"[1]", "does not say which model")
    broken("config.json", b'{"hidden_size": 4}', "does not say which model")
    broken("config.json", b'{"model_type": "gpt2"}', r"is a Hugging Face model \(gpt2\); keysift import reads llama")
    broken("config.json", b'{"model_type": "llama"}', "bring it here with keysift import .* --out DIRECTORY")
    broken("config.json", b'{"model": "multiscren"}', "did you mean 'multiscreen'")
    broken("config.json", whole["config.json"].replace(b'"tiles"', b'"tile"'), "did you mean 'tiles'")
    for cut in (0, 4, 100, len(whole["model.safetensors"]) - 1):
        broken("model.safetensors", whole["model.safetensors"][:cut], "not a whole safetensors file")
    broken("model.safetensors", b"\x80\x04pickle, which is never loaded", "not a whole safetensors file")
    config = json.loads(whole["config.json"])
    broken("config.json", json.dumps(config | {"width": 7}).encode(), r"does not fit.*and \d+ more")
    broken("config.json", json.dumps(config | {"gate": False}).encode(), "gate_proj.weight is not a weight of this")
    broken("config.json", json.dumps(config | {"vocab_size": 5}).encode(), r"is \(9, 6\), the config says \(5, 6\)")
    for name in ("depth", "tiles", "width", "vocab_size", "key_width", "value_width"):
        huge = json.dumps(config | {name: 10**12}).encode()
        broken("config.json", huge, f"config.json says {name} 1000000000000, more than model.safetensors can hold")
    broken("config.json", json.dumps(config | {"depth": 40}).encode(), "config.json says depth 40, more than")
    broken("config.json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "config.json is not JSON .*nested too deeply")
    state = load_file(run / "model.safetensors")
    save_file(state | {"embedding.s_E": torch.tensor([1])}, tmp_path / "whole.safetensors")
    broken("model.safetensors", (tmp_path / "whole.safetensors").read_bytes(), "embedding.s_E is I64, weights are one")
    state.pop("embedding.s_E")
    save_file(state, tmp_path / "less.safetensors")
    broken("model.safetensors", (tmp_path / "less.safetensors").read_bytes(), "embedding.s_E is missing")
    (run / "model.safetensors").unlink()
    with refuses("holds no weights; expected model.safetensors, or its shards"):
        load(run)


def test_places_and_models_that_cannot_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with refuses("is a file; a model is saved as a directory"):
        save(opened(TINY), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"

    class Mine(Multiscreen):
        pass

    with refuses("Mine is not one of multiscreen, transformer"):
        save(Mine(TINY), tmp_path / "mine")


def test_version_1_weights_are_the_same_function() -> None:
    """alpha = max(1 - r1 (1 - s), 0)^2 with r1 = exp(s1) + 1, and s_r = -s1."""
    model = opened(TINY)
    as_version_1 = {name: -p if name.endswith(".s_r") else p for name, p in model.state_dict().items()}
    other = Multiscreen(TINY)
    other.load_state_dict(from_version_1(as_version_1))
    tokens = tokens_for(model, 1, 8)
    close(other(tokens), model(tokens))
    s1 = as_version_1["layers.0.tiles.scalars.s_r"]
    inverse = 1 / model.layers[0].scalars.stored(model.cache(1).inference)["acceptance"]
    torch.testing.assert_close(inverse, s1.exp() + 1)
    with torch.no_grad():
        other.load_state_dict(as_version_1)
        assert (other(tokens) - model(tokens)).abs().max() > 1e-3


def test_sizes_whose_product_no_integer_holds(tmp_path: Path) -> None:
    """Each alone could be, by the number of weights; together they are more than a machine can count."""
    large = 3_000_000
    sizes = {"vocab_size": 2, "depth": 1, "tiles": large, "width": large, "key_width": large, "value_width": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model": "multiscreen", **sizes}))
    save_file({"x": torch.zeros(large, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    with refuses("describes no model that can be built"):
        load(tmp_path)

"""Save and load: equal models, and errors for damaged directories."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from keysift.models.language_model import LanguageModel
from keysift.models.multiscreen import Multiscreen
from keysift.models.save import load, save
from keysift.models.transformer import TransformerConfig
from tests.models.checks import TINY, perturbed_multiscreen, perturbed_transformer, tokens_for
from tests.refusals import refuses

HYBRID = TransformerConfig(
    vocab_size=9, depth=3, heads=4, width=16, mechanism=("differential_v1", "softmax+value_gate", "alpha_entmax")
)


@pytest.fixture(params=["multiscreen", "transformer", "bf16"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    if request.param == "transformer":
        return perturbed_transformer(HYBRID)
    result = perturbed_multiscreen(dataclasses.replace(TINY, acceptance=0.875, position="rope"))
    return result.bfloat16() if request.param == "bf16" else result


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_save_and_load_round_trip(model: LanguageModel, tmp_path: Path) -> None:
    save(model, tmp_path / "new" / "run")
    result = load(tmp_path / "new" / "run")
    tokens = tokens_for(model, 2, 7)
    assert type(result) is type(model)
    assert result.config == model.config
    assert torch.equal(result(tokens), model(tokens))
    assert sorted(contents(tmp_path / "new" / "run")) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["run"]


def test_saving_again_keeps_the_other_files(tmp_path: Path) -> None:
    first, second = perturbed_multiscreen(TINY), perturbed_multiscreen(TINY, seed=1)
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
    save(perturbed_multiscreen(TINY), run)
    before = contents(run)

    def full(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(f"keysift.{fails}", full)
    with pytest.raises(OSError, match="disk full"):
        save(perturbed_multiscreen(TINY, seed=1), run)
    assert contents(run) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "models" / "first")
    for seed in (0, 1):
        save(perturbed_multiscreen(TINY, seed=seed), tmp_path / "latest")
        tokens = tokens_for(perturbed_multiscreen(TINY), 1, 5)
        assert torch.equal(load(tmp_path / "latest")(tokens), perturbed_multiscreen(TINY, seed=seed)(tokens))
    assert (tmp_path / "latest").is_symlink()
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["first"]


def test_mixed_dtypes_load_as_the_widest(tmp_path: Path) -> None:
    save(perturbed_multiscreen(TINY), tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    halves = {name: tensor.bfloat16() if "proj" in name else tensor for name, tensor in state.items()}
    save_file(halves, tmp_path / "model.safetensors")
    result = load(tmp_path)
    assert {parameter.dtype for parameter in result.parameters()} == {torch.float32}
    assert torch.equal(result.state_dict()["embedding.weight"], state["embedding.weight"])
    result(tokens_for(result, 1, 5))


def test_files_that_are_not_a_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with refuses(r"config.json is missing; a model directory has"):
        load(run)
    save(perturbed_multiscreen(TINY), run)
    original = contents(run)

    def check_damaged(name: str, data: bytes, match: str) -> None:
        (run / name).write_bytes(data)
        damaged = contents(run)
        with refuses(match):
            load(run)
        assert contents(run) == damaged
        (run / name).write_bytes(original[name])

    check_damaged("config.json", original["config.json"][:20], "config.json is not JSON")
    check_damaged("config.json", b"\xff\xfe", "config.json is not JSON")
    check_damaged("config.json", b"[1]", "has no model_type of keysift")
    check_damaged("config.json", b'{"hidden_size": 4}', "has no model_type of keysift")
    check_damaged(
        "config.json", b'{"model_type": "gpt2"}', r"is a Hugging Face model \(gpt2\); keysift import reads llama"
    )
    check_damaged("config.json", b'{"model_type": "llama"}', "import it with keysift import .* --out DIRECTORY")
    check_damaged("config.json", b'{"model_type": "keysift_multiscren"}', "did you mean 'multiscreen'")
    check_damaged("config.json", original["config.json"].replace(b'"tiles"', b'"tile"'), "did you mean 'tiles'")
    for cut in (0, 4, 100, len(original["model.safetensors"]) - 1):
        check_damaged("model.safetensors", original["model.safetensors"][:cut], "not a complete safetensors file")
    check_damaged("model.safetensors", b"\x80\x04pickle, which is never loaded", "not a complete safetensors file")
    config = json.loads(original["config.json"])
    check_damaged("config.json", json.dumps(config | {"width": 7}).encode(), r"does not fit.*and \d+ more")
    check_damaged(
        "config.json", json.dumps(config | {"gate": False}).encode(), "gate_proj.weight is not a weight of this"
    )
    check_damaged(
        "config.json", json.dumps(config | {"vocab_size": 5}).encode(), r"is \(9, 6\), the config says \(5, 6\)"
    )
    for name in ("depth", "tiles", "width", "vocab_size", "key_width", "value_width"):
        huge = json.dumps(config | {name: 10**12}).encode()
        check_damaged(
            "config.json", huge, f"config.json says {name} 1000000000000, more than model.safetensors can hold"
        )
    check_damaged("config.json", json.dumps(config | {"depth": 40}).encode(), "config.json says depth 40, more than")
    check_damaged(
        "config.json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "config.json is not JSON .*nested too deeply"
    )
    state = load_file(run / "model.safetensors")
    save_file(state | {"embedding.s_E": torch.tensor([1])}, tmp_path / "whole.safetensors")
    check_damaged(
        "model.safetensors", (tmp_path / "whole.safetensors").read_bytes(), "embedding.s_E is I64, weights are one"
    )
    state.pop("embedding.s_E")
    save_file(state, tmp_path / "less.safetensors")
    check_damaged("model.safetensors", (tmp_path / "less.safetensors").read_bytes(), "embedding.s_E is missing")
    (run / "model.safetensors").unlink()
    with refuses("has no weights; expected model.safetensors, or shards"):
        load(run)


def test_save_refuses_files_and_subclasses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with refuses("is a file; a model is saved as a directory"):
        save(perturbed_multiscreen(TINY), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"

    class Mine(Multiscreen):
        pass

    with refuses("Mine is not one of multiscreen, transformer"):
        save(Mine(TINY), tmp_path / "mine")


def test_sizes_whose_product_overflows_are_refused(tmp_path: Path) -> None:
    """Each size fits the number of weights; their product overflows int64."""
    large = 3_000_000
    sizes = {"vocab_size": 2, "depth": 1, "tiles": large, "width": large, "key_width": large, "value_width": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "keysift_multiscreen", **sizes}))
    save_file({"x": torch.zeros(large, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    with refuses("describes a model that cannot be built"):
        load(tmp_path)

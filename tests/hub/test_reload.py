"""Exported models and their backbones are loaded, saved and loaded again, with and without keysift's own classes."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import torch

from keysift.hub.export import export
from keysift.models.save import load
from tests.hub.keysift_models import ARCHS, loaded, saved_model

pytestmark = pytest.mark.slow
TOKENS = torch.arange(40).view(1, 40)
KINDS = ("multiscreen", "softmax")
# Arguments: the exported directory, a directory for copies, whether a LoRA adapter is merged before saving.
RELOAD = """
import json, sys, torch, importlib.util
assert importlib.util.find_spec("keysift") is None
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
path, copies, merges = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
tokens, logits = torch.arange(40).view(1, 40), []
for number in range(3):
    model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True).eval()
    if merges and number == 0:
        import peft
        tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
        model = tuned.merge_and_unload()
    with torch.no_grad():
        logits.append(model(tokens).logits)
    path = f"{copies}/{number}"
    model.save_pretrained(path)
assert torch.equal(logits[0], logits[1]) and torch.equal(logits[1], logits[2])
backbone = AutoModel.from_pretrained(path, trust_remote_code=True).eval()
with torch.no_grad():
    hidden = backbone(tokens).last_hidden_state
    assert torch.equal(backbone.get_output_embeddings()(hidden), logits[0])
backbone.save_pretrained(f"{copies}/backbone")
AutoModel.from_pretrained(f"{copies}/backbone", trust_remote_code=True)
AutoConfig.from_pretrained(path, trust_remote_code=True).save_pretrained(f"{copies}/config")
AutoConfig.from_pretrained(f"{copies}/config", trust_remote_code=True)
assert not [name for name in sys.modules if name.split(".")[0] == "keysift"]
print(json.dumps(logits[0][0, :, :7].tolist()))
"""


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_exports_are_saved_and_loaded_again_without_keysift(name: str, merges: bool, tmp_path: Path) -> None:
    if merges:
        pytest.importorskip("peft")
    saved_model(tmp_path / "model", name)
    export(tmp_path / "model", tmp_path / "exported")
    venv.create(tmp_path / "clean", with_pip=False)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages")),
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "HF_HUB_OFFLINE": "1",
    }
    python = tmp_path / "clean" / "bin" / "python"
    command = [python, "-c", RELOAD, tmp_path / "exported", tmp_path / "copies", str(merges)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    logits = torch.tensor(json.loads(done.stdout.splitlines()[-1]))
    with torch.no_grad():
        # Plain torch there, compiled kernels here.
        expected = load(tmp_path / "copies" / "2")(TOKENS)[0, :, :7]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_exports_are_saved_and_loaded_again_with_keysift(
    name: str, trusts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy loads either way. It names code files only if it holds them."""
    from transformers import AutoModelForCausalLM, dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "modules")])
    saved_model(tmp_path / "model", name)
    export(tmp_path / "model", tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", trust_remote_code=trusts)
    expected = model(TOKENS).logits
    model.save_pretrained(tmp_path / "copy")
    for again in (False, True):
        copy = AutoModelForCausalLM.from_pretrained(tmp_path / "copy", trust_remote_code=again)
        torch.testing.assert_close(copy(TOKENS).logits, expected)
    named = "auto_map" in json.loads((tmp_path / "copy" / "config.json").read_text())
    assert named == any((tmp_path / "copy").glob("keysift_*.py"))


@pytest.mark.parametrize("name", ARCHS)
def test_backbone(name: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    model: Any = loaded(tmp_path / "a", name)
    assert model.base_model is model.model
    assert model.base_model_prefix == "model"
    assert not any(key.startswith("model.") for key in model.state_dict())
    outputs = model(TOKENS, output_hidden_states=True)
    backbone = AutoModel.from_pretrained(tmp_path / "a")
    assert type(backbone) is type(model.base_model)
    for source in (model.base_model, backbone):
        hidden = source(TOKENS, output_hidden_states=True)
        assert torch.equal(hidden.last_hidden_state, outputs.hidden_states[-1])
        assert torch.equal(hidden.last_hidden_state, hidden.hidden_states[-1])
        head = model.get_output_embeddings()
        # The contract of fused losses: logits are a product with the weight of the head.
        assert head.bias is None
        torch.testing.assert_close(hidden.last_hidden_state @ head.weight.mT, outputs.logits)
    backbone.save_pretrained(tmp_path / "b")
    assert torch.equal(load(tmp_path / "b")(TOKENS), outputs.logits)


def test_training_mode_and_options_reach_the_backbone(tmp_path: Path) -> None:
    from keysift.nn.inference import Inference

    model = loaded(tmp_path)
    assert not model.model.training
    assert model.train().model.training
    model.gradient_checkpointing_enable()
    assert model.model.gradient_checkpointing
    assert model.model.is_gradient_checkpointing
    model.inference = Inference(expand_windows=True)
    assert model.model.inference.expand_windows is True

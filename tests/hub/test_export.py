"""An exported directory loads without keysift and gives the same logits."""

import ast
import json
import os
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.cli.main import main
from keysift.data.tokenizers.bytes import Bytes
from keysift.data.tokenizers.load import save_tokenizer
from keysift.hub.export import export
from keysift.hub.remote_code import bundle, rewrite_imports
from keysift.mechanisms import MECHANISMS
from keysift.models.registry import build, configure
from keysift.runs.layout import newest_checkpoint
from tests.hub.keysift_models import ARCHS, saved_model, small_model
from tests.refusals import refuses

LOAD_SCRIPT = """
import json, sys, torch, importlib.util
assert importlib.util.find_spec("keysift") is None
from transformers import AutoModelForCausalLM, AutoTokenizer
path = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=True)
prompts = tokenizer(["def f", "x"], return_tensors="pt", padding=True)
generated = model.generate(**prompts, max_new_tokens=8, do_sample=False)
assert not [name for name in sys.modules if name.split(".")[0] == "keysift"]
with torch.no_grad():
    logits = model(torch.arange(40).view(1, 40)).logits
    first = model(torch.arange(9).view(1, 9), use_cache=True)
    parts, past = [first.logits], first.past_key_values
    for token in range(9, 40):
        step = model(torch.tensor([[token]]), past_key_values=past, use_cache=True)
        parts, past = [*parts, step.logits], step.past_key_values
torch.testing.assert_close(torch.cat(parts, dim=1), logits, atol=5e-5, rtol=1e-4)
texts = tokenizer.batch_decode(generated, skip_special_tokens=True)
print(json.dumps({"logits": logits[0, :, :7].tolist(), "texts": texts}))
"""


def test_only_imports_are_rewritten() -> None:
    text, needed = rewrite_imports(
        '"""Doc of keysift.core."""\nimport json\nfrom keysift.core import safe_json\n\n\ndef f():\n'
        "    from keysift.core.config import config, to_dict as dump  # why\n    return config\n"
    )
    assert text == (
        '"""Doc of keysift.core."""\nimport json\nfrom .keysift_core_safe_json import __name__ as _\n'
        "from . import keysift_core_safe_json as safe_json\n\n\ndef f():\n"
        "    from .keysift_core_config import config as config\n    from .keysift_core_config import to_dict as dump\n"
        "    return config\n"
    )
    assert sorted(needed) == ["keysift.core.config", "keysift.core.config", "keysift.core.safe_json"]


def test_bundle_contains_every_import_and_no_training_code() -> None:
    files = bundle()
    for name, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.module is None or f"{node.module}.py" in files, name
            elif isinstance(node, ast.ImportFrom | ast.Import):
                names = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                )
                assert not any(module.split(".")[0] == "keysift" for module in names), name
    entry_file = files["keysift_hub_models.py"]
    others = [name.removesuffix(".py") for name in files if files[name] is not entry_file]
    assert all(f"from .{name} import" in entry_file for name in others), (
        "older versions of transformers copy only directly imported files"
    )
    assert not any(part in name for name in files for part in ("_train_", "_lens_", "_cli_", "_data_", "_web_"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multiscreen", "layered", "pro"])
def test_exported_model_loads_without_keysift(name: str, tmp_path: Path) -> None:
    """In a new virtual environment with the site-packages of this one, without the editable install of keysift."""
    saved_model(tmp_path / "model", name)
    export(tmp_path / "model", tmp_path / "exported")
    venv.create(tmp_path / "clean", with_pip=False)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages")),
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [tmp_path / "clean" / "bin" / "python", "-c", LOAD_SCRIPT, tmp_path / "exported"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    actual = json.loads(process.stdout.splitlines()[-1])
    with torch.no_grad():
        expected = small_model(name)(torch.arange(40).view(1, 40))[0, :, :7]
    # Plain torch there, compiled kernels here.
    torch.testing.assert_close(torch.tensor(actual["logits"]), expected, atol=1e-5, rtol=1e-4)
    texts = keysift.open(tmp_path / "model").generate(["def f", "x"], max_new_tokens=8)
    assert actual["texts"] == ["def f" + texts[0], "x" + texts[1]]


@pytest.mark.parametrize("name", ["multiscreen", "layered", "pro"])
def test_exported_directory_loads_in_keysift(name: str, tmp_path: Path) -> None:
    saved_model(tmp_path / "model", name)
    files = export(tmp_path / "model", tmp_path / "exported")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    tokens = torch.arange(30).view(1, 30)
    assert torch.equal(keysift.load(tmp_path / "exported")(tokens), keysift.load(tmp_path / "model")(tokens))
    assert "Not recorded." in (tmp_path / "exported" / "README.md").read_text()
    with refuses("already exists; choose a new directory for the exported model"):
        export(tmp_path / "model", tmp_path / "exported")
    origin = tmp_path / "model" / "origin.json"
    origin.write_text("[]")
    with refuses("origin.json does not name the imported model .*; import the model again"):
        export(tmp_path / "model", tmp_path / "again")
    origin.write_text('{"imported": "smol", "family": "llama"}')
    export(tmp_path / "model", tmp_path / "again")
    assert "Imported from smol (llama)" in (tmp_path / "again" / "README.md").read_text()


@pytest.mark.slow
def test_model_card_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It lists the recipe, the data and the results."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the cat number {n} sat on the mat and looked at the other cat\n\n" for n in range(80)))
    flags = ["--psi", "2", "--context", "16", "--batch-tokens", "32", "--steps", "2", "--sample-tokens", "0", "--quiet"]
    for command in (
        ["train", "--data", str(text), "--out", str(tmp_path / "run"), *flags],
        ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--hub"],
    ):
        with pytest.raises(SystemExit) as exit_info:
            main(command)
        assert exit_info.value.code == 0, capsys.readouterr().err
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| training tokens | 64 |" in card
    assert f"| data | {text} |" in card
    assert "Validation loss " in card
    assert newest_checkpoint(tmp_path / "run") is not None


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "a", "b"])
    assert "choose a target: --hub" in capsys.readouterr().err
    from keysift.cli.verbs import export as verb

    with refuses("choose a target: --hub"):
        verb.run(verb.Args(run=tmp_path, out=tmp_path))
    own = replace(MECHANISMS.find("sigmoid"), name="own", finish=(_finish,))
    MECHANISMS.add("own", own)
    try:
        arch = replace(ARCHS["softmax"], mechanism="own")
        keysift.save(build(configure(arch, vocab_size=257, context=16)), tmp_path / "own")
        save_tokenizer(Bytes(), tmp_path / "own")
        with refuses("own is computed by tests.hub.test_export, which is not part of keysift"):
            export(tmp_path / "own", tmp_path / "out")
    finally:
        MECHANISMS._items.pop("own")


def _finish(out: torch.Tensor) -> torch.Tensor:
    return out

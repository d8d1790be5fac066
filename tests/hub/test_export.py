"""An exported directory runs where keysift is not installed, and computes the same."""

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
from keysift.data.tokenizer import Bytes, save_tokenizer
from keysift.hub.bundle import bundle, rewritten
from keysift.hub.export import export
from keysift.mechanisms import MECHANISMS
from keysift.models.kinds import build, configure
from keysift.runs.layout import newest
from tests.hub.ours import ARCHS, kept, small
from tests.refusals import refuses

LOADED = """
import json, sys, torch, importlib.util
assert importlib.util.find_spec("keysift") is None
from transformers import AutoModelForCausalLM, AutoTokenizer
path = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=True)
prompts = tokenizer(["def f", "x"], return_tensors="pt", padding=True)
made = model.generate(**prompts, max_new_tokens=8, do_sample=False)
assert not [name for name in sys.modules if name.split(".")[0] == "keysift"]
with torch.no_grad():
    logits = model(torch.arange(40).view(1, 40)).logits
texts = tokenizer.batch_decode(made, skip_special_tokens=True)
print(json.dumps({"logits": logits[0, :, :7].tolist(), "texts": texts}))
"""


def test_imports_are_rewritten_and_nothing_else() -> None:
    text, needed = rewritten(
        '"""Doc of keysift.core."""\nimport json\nfrom keysift.core import jsons\n\n\ndef f():\n'
        "    from keysift.core.config import config, to_dict as told  # why\n    return config\n"
    )
    assert text == (
        '"""Doc of keysift.core."""\nimport json\nfrom .keysift_core_jsons import __name__ as _\n'
        "from . import keysift_core_jsons as jsons\n\n\ndef f():\n"
        "    from .keysift_core_config import config as config\n    from .keysift_core_config import to_dict as told\n"
        "    return config\n"
    )
    assert sorted(needed) == ["keysift.core.config", "keysift.core.config", "keysift.core.jsons"]


def test_the_bundle_is_closed_and_small() -> None:
    files = bundle()
    for name, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.module is None or f"{node.module}.py" in files, name
            elif isinstance(node, ast.ImportFrom | ast.Import):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                assert not any(one.split(".")[0] == "keysift" for one in names), name
    first = files["keysift_hub_modeling.py"]
    others = [name.removesuffix(".py") for name in files if files[name] is not first]
    assert all(f"from .{name} import" in first for name in others), "older versions copy no others"
    assert not any(part in name for name in files for part in ("_train_", "_lens_", "_cli_", "_data_", "_web_"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multiscreen", "mixed"])
def test_it_loads_without_keysift(name: str, tmp_path: Path) -> None:
    """In an environment of its own, with the packages of this one: an editable install is not among them."""
    kept(tmp_path / "model", name)
    export(tmp_path / "model", tmp_path / "exported")
    venv.create(tmp_path / "clean", with_pip=False)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages")),
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [tmp_path / "clean" / "bin" / "python", "-c", LOADED, tmp_path / "exported"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    with torch.no_grad():
        wanted = small(name)(torch.arange(40).view(1, 40))[0, :, :7]
    # Plain torch there, compiled kernels here.
    torch.testing.assert_close(torch.tensor(found["logits"]), wanted, atol=1e-5, rtol=1e-4)
    texts = keysift.open(tmp_path / "model").generate(["def f", "x"], max_new_tokens=8)
    assert found["texts"] == ["def f" + texts[0], "x" + texts[1]]


def test_the_same_directory_is_keysifts_too(tmp_path: Path) -> None:
    kept(tmp_path / "model", "multiscreen")
    files = export(tmp_path / "model", tmp_path / "exported")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    tokens = torch.arange(30).view(1, 30)
    assert torch.equal(keysift.load(tmp_path / "exported")(tokens), keysift.load(tmp_path / "model")(tokens))
    assert "does not say how it was trained" in (tmp_path / "exported" / "README.md").read_text()
    with refuses("exists already; an exported model needs a folder of its own"):
        export(tmp_path / "model", tmp_path / "exported")
    origin = tmp_path / "model" / "origin.json"
    origin.write_text("[]")
    with refuses("origin.json does not say what was imported .*; import the model again"):
        export(tmp_path / "model", tmp_path / "again")
    origin.write_text('{"imported": "smol", "family": "llama"}')
    export(tmp_path / "model", tmp_path / "again")
    assert "Imported from smol (llama)" in (tmp_path / "again" / "README.md").read_text()


@pytest.mark.slow
def test_the_card_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recipe, data and results stand in it."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the cat number {n} sat on the mat and looked at the other cat\n\n" for n in range(80)))
    flags = ["--psi", "2", "--context", "16", "--batch-tokens", "32", "--steps", "2", "--sample-tokens", "0", "--quiet"]
    for words in (
        ["train", "--data", str(text), "--out", str(tmp_path / "run"), *flags],
        ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--hub"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0, capsys.readouterr().err
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| training tokens | 64 |" in card
    assert f"| data | {text} |" in card
    assert "Validation loss " in card
    assert newest(tmp_path / "run") is not None


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "a", "b"])
    assert "say for whom: --hub" in capsys.readouterr().err
    from keysift.cli import export as verb

    with refuses("say for whom: --hub"):
        verb.run(verb.Args(run=tmp_path, out=tmp_path))
    own = replace(MECHANISMS.find("sigmoid"), name="own", finish=(_finish,))
    MECHANISMS.add("own", own)
    try:
        arch = replace(ARCHS["softmax"], mechanism="own")
        keysift.save(build(configure(arch, vocab_size=257, context=16)), tmp_path / "own")
        save_tokenizer(Bytes(), tmp_path / "own")
        with refuses("own is computed by tests.hub.test_export, which is no part of keysift"):
            export(tmp_path / "own", tmp_path / "out")
    finally:
        MECHANISMS._items.pop("own")


def _finish(out: torch.Tensor) -> torch.Tensor:
    return out

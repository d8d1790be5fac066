"""keysift check, and mechanisms of other packages: loaded with --plugin or from an entry point."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

from keysift.cli.main import _main
from keysift.kernels.call import Call
from keysift.kernels.eager import blockwise
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Promise
from keysift.verify import check as checks
from tests.forked_process import run_keysift
from tests.refusals import refuses

KEYSIFT = str(Path(sys.executable).parent / "keysift")
MINE = '''"""Square of the positive part, at most one."""
from torch import Tensor

import keysift
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism, Promise


def weigh_key(x: Tensor, distance: Tensor) -> Tensor:
    return x.clamp(0, 1).square()


WRONG = {Promise.SUMS_TO_ONE, Promise.CONVEX_HULL, Promise.HULL_WITH_ZERO, Promise.SHIFT_INVARIANT}
MINE = Mechanism(
    name="mine", title="Mine", source="this test", page="", formula="w = min(max(x, 0), 1)^2",
    rule=Pointwise(weigh_key=weigh_key), holds=frozenset(Promise) - WRONG - {Promise.SCALE_INVARIANT},
)
'''
REGISTERED = MINE + "keysift.register(MINE)\n"


def in_process(*arguments: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_keysift(*arguments, cwd=path, COLUMNS="100", **environment)


def test_a_correct_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["check", "relu"]) == 0
    output = capsys.readouterr().out
    assert "relu: the spec is right." in output
    assert "WRONG" not in output


def test_every_wrong_promise_has_a_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = find("softmax")
    holds = (softmax.holds | {Promise.ABSOLUTE}) - {Promise.SUMS_TO_ONE}
    result = checks.check(dataclasses.replace(softmax, name="wrong_spec", holds=holds, flat=frozenset({"v"})))
    wrong = {line.name: line for line in (*result.promises, *result.gradients, *result.backends) if not line.correct}
    assert set(wrong) == {"sums_to_one", "absolute", "absolute by type", "finite differences"}
    assert "keys 0, 2, 3 and 5 get" in wrong["absolute"].example
    assert wrong["sums_to_one"].stated == "does not hold"
    assert not result.correct


def test_a_wrong_backend_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    original_run = blockwise.run

    def wrong_run(call: Call) -> tuple[Tensor, None]:
        out, _ = original_run(call)
        return out * 1.001, None

    wrong_backend = dataclasses.replace(checks.BACKENDS.find("blockwise"), run=wrong_run)
    monkeypatch.setitem(checks.BACKENDS._items, "blockwise", wrong_backend)
    line = checks.check_backend(find("relu"), "blockwise")
    assert not line.correct
    assert "the output of relu on blockwise is off by" in line.example


@pytest.mark.slow
def test_a_plugin_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mymodule.py").write_text(REGISTERED)
    for arguments in (
        ("--plugin", "mymodule", "check", "mine", "--json"),
        ("check", "mine", "--plugin=mymodule", "--json"),
    ):
        process = in_process(*arguments, path=tmp_path)
        assert process.returncode == 0, process.stdout + process.stderr
        assert json.loads(process.stdout)["correct"]
    listed = in_process("mechanisms", "mine", "--plugin", "mymodule", path=tmp_path)
    assert "claimed      the weight of a key does not change" in listed.stdout
    assert "Run keysift check mine" in listed.stdout
    unnamed = in_process("mechanisms", "mine", path=tmp_path)
    assert unnamed.returncode == 2
    assert "no mechanism is called 'mine'" in unnamed.stderr
    assert "--plugin MODULE" in unnamed.stderr
    # Child processes get the plugins from an environment variable.
    assert in_process("mechanisms", "mine", path=tmp_path, KEYSIFT_PLUGINS="mymodule").returncode == 0


@pytest.mark.slow
def test_a_wrong_plugin_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "mymodule.py").write_text(REGISTERED.replace(", Promise.SHIFT_INVARIANT}", "}"))
    process = in_process("check", "mine", "--plugin", "mymodule", path=tmp_path)
    assert process.returncode == 1
    assert "shift_invariant: the spec states holds, observed: refuted" in process.stdout
    assert "when 0.7 is added" in process.stdout


@pytest.mark.slow
def test_an_entry_point(tmp_path: Path) -> None:
    """The command line, attend and load find it by name, without an import."""
    (tmp_path / "mymodule.py").write_text(MINE)
    information = tmp_path / "mymodule-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mymodule\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[keysift.mechanisms]\nmine = mymodule:MINE\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    listed = subprocess.run([KEYSIFT, "mechanisms"], check=False, capture_output=True, text=True, env=environment)
    assert listed.returncode == 0, listed.stderr
    assert "Claimed, not tested here: mine." in listed.stdout
    code = (
        "import keysift, sys, torch\n"
        "sizes = dict(vocab_size=9, depth=1, width=8, heads=2)\n"
        "if sys.argv[1] == 'save':\n"
        "    model = keysift.Transformer(keysift.TransformerConfig(mechanism='mine', **sizes))\n"
        "    keysift.save(model, 'saved')\n"
        "else:\n"
        "    model = keysift.load('saved')\n"
        "print(model(torch.arange(5)[None]).sum().item())\n"
    )
    output = [
        subprocess.run(
            [sys.executable, "-c", code, verb],
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        ).stdout
        for verb in ("save", "load")
    ]
    assert output[0] == output[1]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keysift.cli.main import _without_plugins
    from keysift.mechanisms.lookup import load_module

    with refuses("--plugin needs the name of a module"):
        _without_plugins(["check", "--plugin"])
    with refuses("--plugin no_such_module: no such module in the current folder or the installed packages"):
        load_module("no_such_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "half.py").write_text("import no_such_thing\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        load_module("half")
    assert "" not in sys.path


def test_a_mechanism_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from keysift.mechanisms import lookup

    class Entry:
        def load(self) -> object:
            return find("softmax")

    monkeypatch.setattr(lookup, "entry_points", lambda group: [Entry()])
    names = MECHANISMS.names()
    lookup.discover.__wrapped__()
    assert MECHANISMS.names() == names


@pytest.mark.slow
def test_a_run_remembers_the_plugin_of_its_mechanism(tmp_path: Path) -> None:
    (tmp_path / "mymodule.py").write_text(REGISTERED)
    (tmp_path / "story.txt").write_text("all happy families are alike\n" * 40)
    sizes = ("--arch", "transformer", "--depth", "1", "--heads", "1", "--width", "8", "--context", "16")
    new = ("train", "--data", "story.txt", *sizes, "--mechanism", "mine", "--batch-tokens", "32", "--quiet")
    environment = {"KEYSIFT_CACHE": str(tmp_path / "cache")}
    process = in_process(*new, "--steps", "1", "--out", "run", "--plugin", "mymodule", path=tmp_path, **environment)
    assert process.returncode == 0, process.stderr
    generate = ("generate", "run", "--prompt", "all ", "--max-new-tokens", "1")
    resume = ("train", "--resume", "run", "--steps", "2", "--quiet")
    for arguments in (generate, resume):
        process = in_process(*arguments, path=tmp_path, **environment)
        assert process.returncode == 2
        assert (
            "run uses a mechanism of the module mymodule, which is not loaded; pass --plugin mymodule" in process.stderr
        )
        process = in_process(*arguments, "--plugin", "mymodule", path=tmp_path, **environment)
        assert process.returncode == 0, process.stderr
    samples = (tmp_path / "run" / "samples").glob("*.txt")
    assert all(sample.read_text().startswith("all happy") for sample in samples), "the first words of the text"

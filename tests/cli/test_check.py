"""keysift check, and mechanisms of other packages: named by --plugin or found through an entry point."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

from keysift.cli.main import _main
from keysift.evaluate import check as checks
from keysift.kernels import blockwise
from keysift.kernels.call import Call
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Promise
from tests.refusals import refuses

KEYSIFT = str(Path(sys.executable).parent / "keysift")
MINE = '''"""Square of what is positive, capped at one."""
from torch import Tensor

import keysift
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism, Promise


def judge(x: Tensor, distance: Tensor) -> Tensor:
    return x.clamp(0, 1).square()


WRONG = {Promise.SUMS_TO_ONE, Promise.CONVEX_HULL, Promise.HULL_WITH_ZERO, Promise.SHIFT_INVARIANT}
MINE = Mechanism(
    name="mine", title="Mine", source="this test", page="", formula="w = min(max(x, 0), 1)^2",
    rule=Pointwise(judge=judge), holds=frozenset(Promise) - WRONG - {Promise.SCALE_INVARIANT},
)
'''
REGISTERED = MINE + "keysift.register(MINE)\n"


def in_process(*arguments: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    told = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run([KEYSIFT, *arguments], check=False, capture_output=True, text=True, cwd=path, env=told)


def test_a_right_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["check", "relu"]) == 0
    said = capsys.readouterr().out
    assert "relu: the spec is right." in said
    assert "WRONG" not in said


def test_every_wrong_claim_has_its_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = find("softmax")
    holds = (softmax.holds | {Promise.ABSOLUTE}) - {Promise.SUMS_TO_ONE}
    found = checks.check(dataclasses.replace(softmax, name="lies", holds=holds, flat=frozenset({"v"})))
    wrong = {line.name: line for line in (*found.promises, *found.gradients, *found.backends) if not line.right}
    assert set(wrong) == {"sums_to_one", "absolute", "absolute by type", "finite differences"}
    assert "keys 0, 2, 3 and 5 get" in wrong["absolute"].example
    assert wrong["sums_to_one"].says == "does not hold"
    assert not found.right


def test_a_backend_that_strays(monkeypatch: pytest.MonkeyPatch) -> None:
    right = blockwise.run

    def stray(call: Call) -> tuple[Tensor, None]:
        out, _ = right(call)
        return out * 1.001, None

    spoiled = dataclasses.replace(checks.BACKENDS.find("blockwise"), run=stray)
    monkeypatch.setitem(checks.BACKENDS._items, "blockwise", spoiled)
    line = checks._backend(find("relu"), "blockwise")
    assert not line.right
    assert "the output of relu on blockwise is off by" in line.example


@pytest.mark.slow
def test_a_plugin_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mymodule.py").write_text(REGISTERED)
    for words in (
        ("--plugin", "mymodule", "check", "mine", "--json"),
        ("check", "mine", "--plugin=mymodule", "--json"),
    ):
        done = in_process(*words, path=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["right"]
    listed = in_process("mechanisms", "mine", "--plugin", "mymodule", path=tmp_path)
    assert "claimed      each key is judged alone" in listed.stdout
    assert "Run keysift check mine" in listed.stdout
    unnamed = in_process("mechanisms", "mine", path=tmp_path)
    assert unnamed.returncode == 2
    assert "no mechanism is called 'mine'" in unnamed.stderr
    assert "--plugin MODULE" in unnamed.stderr
    # Processes started from here are told through the environment.
    assert in_process("mechanisms", "mine", path=tmp_path, KEYSIFT_PLUGINS="mymodule").returncode == 0


@pytest.mark.slow
def test_a_wrong_plugin_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "mymodule.py").write_text(REGISTERED.replace(", Promise.SHIFT_INVARIANT}", "}"))
    done = in_process("check", "mine", "--plugin", "mymodule", path=tmp_path)
    assert done.returncode == 1
    assert "shift_invariant: the spec says holds, found: refuted" in done.stdout
    assert "when 0.7 is added" in done.stdout


@pytest.mark.slow
def test_an_entry_point(tmp_path: Path) -> None:
    """Found by name in the command line, by attend, and by load in a process that never imported it."""
    (tmp_path / "mymodule.py").write_text(MINE)
    information = tmp_path / "mymodule-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mymodule\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[keysift.mechanisms]\nmine = mymodule:MINE\n")
    listed = in_process("mechanisms", path=Path.cwd(), PYTHONPATH=str(tmp_path))
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
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = [
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
    assert said[0] == said[1]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keysift.cli.main import _without_plugins
    from keysift.mechanisms.lookup import load_module

    with refuses("--plugin needs the name of a module"):
        _without_plugins(["check", "--plugin"])
    with refuses("--plugin no_such_module: no such module, here or among the installed packages"):
        load_module("no_such_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "half.py").write_text("import no_such_thing\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        load_module("half")
    assert "" not in sys.path


def test_a_mechanism_is_registered_once_whoever_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from keysift.mechanisms import lookup

    class Entry:
        def load(self) -> object:
            return find("softmax")

    monkeypatch.setattr(lookup, "entry_points", lambda group: [Entry()])
    known = MECHANISMS.names()
    lookup.discover.__wrapped__()
    assert MECHANISMS.names() == known

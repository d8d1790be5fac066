"""Run directories of the layout before a model was described once: they load, list, generate and start again.

earlier/ was made at commit c718406 by keysift train --data abcdigits:documents=60,max_lines=12 --rows stream
--context 32 --batch-tokens 64 --steps 4 --every 2 --val-sequences 2 --sample-tokens 4 --keep-last 1 --no-keep-best,
once with --psi 2 and once with --arch transformer --depth 1 --heads 2 --width 8 --mechanism ssmax --ema 0.5.
"""

import json
import shutil
from pathlib import Path

import pytest

import keysift
from keysift.cli.main import _main
from keysift.models.arch import MultiscreenArch, TransformerArch, by_todays_names
from keysift.runs.directory import Run
from keysift.runs.earlier import upgraded
from keysift.runs.summary import summary
from keysift.train.config import TrainConfig
from keysift.train.facts import read_facts
from keysift.train.loop import train
from keysift.train.settings import apply
from tests.refusals import refuses
from tests.train.in_process import losses

MODELS = {
    "multiscreen": MultiscreenArch.psi(2),
    "transformer": TransformerArch(depth=1, heads=2, width=8, mechanism="ssmax"),
}


@pytest.fixture(params=MODELS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(Path(__file__).parent / "earlier" / request.param, tmp_path / request.param, symlinks=True)
    return tmp_path / request.param


def test_it_loads_lists_and_generates(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = read_facts(Run(run)).config
    assert config.model == MODELS[run.name]
    assert (config.save_every, config.lr) == (2, 0.0625 if run.name == "multiscreen" else 1e-3)
    assert keysift.load(run).config.depth == config.model.depth
    told = summary(run)
    assert (told.arch, told.step, told.saved, told.state) == (run.name, 4, 4, "finished")
    assert _main(["runs", str(run.parent)]) == 0
    assert _main(["generate", str(run), "--prompt", "def ", "--max-new-tokens", "3"]) == 0
    assert run.name in capsys.readouterr().out


def test_its_training_state_is_not_unpickled(run: Path) -> None:
    before = (run / "train.json").read_text()
    with refuses("in a format that can run code when it is read; its model still loads"):
        train(apply(read_facts(Run(run)).config, {"steps": 6}), run, resume=True, show=False)
    assert (run / "train.json").read_text() == before, "a refused resume changes nothing"
    assert len(losses(run)) == 4


def test_from_the_start_it_gives_the_same_losses(run: Path) -> None:
    """Without checkpoints there is no state to read: the run begins again, by the settings it was given."""
    before = losses(run)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    train(None, run, resume=True, show=False)
    assert losses(run) == pytest.approx(before, abs=1e-5)


def test_settings_by_their_earlier_names() -> None:
    written = json.loads((Path(__file__).parent / "earlier" / "multiscreen" / "train.json").read_text())["config"]
    sizes = {"psi": None, "depth": None, "heads": None, "width": None}
    for fields, model in (
        ({}, MultiscreenArch.psi(8)),
        ({"depth": 2, "heads": 3, "width": 10}, MultiscreenArch(depth=2, tiles=3, width=10)),
        ({"arch": "transformer"}, TransformerArch(depth=4, heads=4, width=128)),
        (
            {"arch": "transformer", "depth": 2, "heads": 1, "width": 8, "mechanism": "sigmoid"},
            TransformerArch(depth=2, heads=1, width=8, mechanism="sigmoid"),
        ),
    ):
        assert apply(TrainConfig(), upgraded({**written, **sizes, **fields})).model == model


def test_names_that_changed_since() -> None:
    told = {"init": "version1", "rope_scaling": "linear:factor=2", "depth": 3}
    assert by_todays_names(told) == {"initial_std": "version1", "rope_rates": "linear:factor=2", "depth": 3}
    assert by_todays_names({"init": "runs/first"}) == {"init": "runs/first"}, "today's init is where weights come from"

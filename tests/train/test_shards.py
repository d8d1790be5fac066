"""Training state on disk: cut and put together by any number of processes, read without pickle, refused if damaged."""

import json
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from keysift.train import shards
from tests.refusals import refuses

WHOLE = {"matrix": torch.arange(15.0).view(5, 3), "number": torch.tensor(2.5), "rng.0": torch.arange(9).byte()}


class Cut:
    """A tensor that one of several processes holds a part of, as fsdp2 cuts it."""

    def __init__(self, whole: Tensor, rank: int, size: int) -> None:
        rows = -(-whole.shape[0] // size)
        self.shape = whole.shape
        self.first = min(rank * rows, whole.shape[0])
        self.local = whole[self.first : self.first + rows].clone()


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    held = shards._held
    monkeypatch.setattr(shards, "_held", lambda t: (t.local, t.first) if isinstance(t, Cut) else held(t))


def write(folder: Path, size: int) -> None:
    folder.mkdir()
    for rank in range(size):
        mine: dict[str, object] = {"matrix": Cut(WHOLE["matrix"], rank, size)} if size > 1 else dict(WHOLE)
        mine[f"rng.{rank}"] = WHOLE["rng.0"]
        if rank == 0:
            mine |= {name: tensor for name, tensor in WHOLE.items() if name != "matrix"}
        shards.write_shard(folder, mine, rank)  # type: ignore[arg-type]
    shards.write_index(folder)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("wrote", [1, 2, 3, 7])
@pytest.mark.parametrize("read", [1, 2, 4, 7])
def test_any_number_of_processes_reads_what_any_other_wrote(tmp_path: Path, wrote: int, read: int) -> None:
    """Five rows: with seven processes some hold none."""
    write(tmp_path / "state", wrote)
    index = shards.read_index(tmp_path / "state")
    for rank in range(read):
        part = Cut(WHOLE["matrix"], rank, read)
        wanted = part.local.clone()
        part.local.fill_(-1)
        number = torch.tensor(0.0)
        shards.read(tmp_path / "state", index, {"matrix": part, "number": number})  # type: ignore[dict-item]
        assert torch.equal(part.local, wanted)
        assert number == 2.5


def test_a_part_of_fsdp2_is_where_torch_puts_it(tmp_path: Path) -> None:
    """The arithmetic of `_held` against torch's own shards, for one process (several: test_distributed.py)."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        tensor = dist.tensor.distribute_tensor(WHOLE["matrix"], mesh, [dist.tensor.Shard(0)])
        local, first = shards._held(tensor)
        assert first == 0
        assert torch.equal(local, WHOLE["matrix"])
    finally:
        dist.destroy_process_group()


def test_damage_and_foreign_state_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    write(folder, 1)
    index, good = folder / shards.INDEX, (folder / shards.INDEX).read_text()
    with refuses("matrix has shape .5, 3., the model needs .5, 4."):
        shards.read(folder, shards.read_index(folder), {"matrix": torch.zeros(5, 4)})
    with refuses("other is missing, the model needs"):
        shards.read(folder, shards.read_index(folder), {"other": torch.zeros(5, 4)})
    for text in ("[]", "{", '{"matrix": 3}', '{"matrix": {"shape": [5]}}', "[" * 100_000):
        index.write_text(text)
        with refuses("does not describe training state"):
            shards.read_index(folder)
    for change in ({"rows": 4}, {"first": 1}, {"file": "../../model.safetensors"}, {"rows": 0}):
        told = json.loads(good)
        told["matrix"]["parts"][0] |= change
        index.write_text(json.dumps(told))
        with refuses("the parts of matrix do not cover it"):
            shards.read_index(folder)
    index.write_text(good)
    shard = folder / "shard-00000.safetensors"
    held = load_file(shard)
    save_file({**held, "matrix": torch.zeros(5, 1)}, shard)  # would be broadcast in silence
    with refuses("does not hold what index.json says of matrix"):
        shards.read(folder, shards.read_index(folder), {"matrix": torch.zeros(5, 3)})
    shard.write_bytes(b"no shard")
    with refuses("shard-00000.safetensors cannot be read"):
        shards.read(folder, shards.read_index(folder), {"matrix": torch.zeros(5, 3)})


def test_state_of_earlier_versions_is_not_unpickled(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(print))
    with refuses("an earlier version, in a format that can run code .* its model still loads"):
        shards.read_index(tmp_path)

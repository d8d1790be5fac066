"""Training state on disk: sharded by any number of processes, read without pickle, refused if damaged."""

import json
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from keysift.train import checkpoint
from tests.refusals import refuses

STATE = {"matrix": torch.arange(15.0).view(5, 3), "number": torch.tensor(2.5), "rng.0": torch.arange(9).byte()}


class Shard:
    """One rank's part of a tensor, sharded by rows as fsdp2 does."""

    def __init__(self, whole: Tensor, rank: int, size: int) -> None:
        rows = -(-whole.shape[0] // size)
        self.shape = whole.shape
        self.first = min(rank * rows, whole.shape[0])
        self.local = whole[self.first : self.first + rows].clone()


@pytest.fixture
def accept_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checkpoints accept `Shard` in place of a DTensor."""
    local = checkpoint._local
    monkeypatch.setattr(checkpoint, "_local", lambda t: (t.local, t.first) if isinstance(t, Shard) else local(t))


def write(folder: Path, size: int) -> None:
    """Write STATE as `size` processes would."""
    folder.mkdir()
    for rank in range(size):
        tensors: dict[str, object] = {"matrix": Shard(STATE["matrix"], rank, size)} if size > 1 else dict(STATE)
        tensors[f"rng.{rank}"] = STATE["rng.0"]
        if rank == 0:
            tensors |= {name: tensor for name, tensor in STATE.items() if name != "matrix"}
        checkpoint.write_shard(folder, tensors, rank)  # type: ignore[arg-type]
    checkpoint.write_index(folder)


@pytest.mark.usefixtures("accept_shards")
@pytest.mark.parametrize("writers", [1, 2, 3, 7])
@pytest.mark.parametrize("readers", [1, 2, 4, 7])
def test_state_is_read_by_another_number_of_processes(tmp_path: Path, writers: int, readers: int) -> None:
    """The matrix has five rows, so some of seven processes have none."""
    write(tmp_path / "state", writers)
    index = checkpoint.read_index(tmp_path / "state")
    for rank in range(readers):
        part = Shard(STATE["matrix"], rank, readers)
        expected = part.local.clone()
        part.local.fill_(-1)
        number = torch.tensor(0.0)
        checkpoint.read_tensors(tmp_path / "state", index, {"matrix": part, "number": number})  # type: ignore[dict-item]
        assert torch.equal(part.local, expected)
        assert number == 2.5


def test_local_shard_matches_a_dtensor(tmp_path: Path) -> None:
    """`_local` against a DTensor of one process. test_distributed.py covers several."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        tensor = dist.tensor.distribute_tensor(STATE["matrix"], mesh, [dist.tensor.Shard(0)])
        local, first = checkpoint._local(tensor)
        assert first == 0
        assert torch.equal(local, STATE["matrix"])
    finally:
        dist.destroy_process_group()


def test_damaged_or_foreign_state_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    write(folder, 1)
    index, good = folder / checkpoint.INDEX, (folder / checkpoint.INDEX).read_text()
    with refuses("matrix has shape .5, 3., the model needs .5, 4."):
        checkpoint.read_tensors(folder, checkpoint.read_index(folder), {"matrix": torch.zeros(5, 4)})
    with refuses("other is missing, the model needs"):
        checkpoint.read_tensors(folder, checkpoint.read_index(folder), {"other": torch.zeros(5, 4)})
    for text in ("[]", "{", '{"matrix": 3}', '{"matrix": {"shape": [5]}}', "[" * 100_000):
        index.write_text(text)
        with refuses("does not describe training state"):
            checkpoint.read_index(folder)
    for change in ({"rows": 4}, {"first": 1}, {"file": "../../model.safetensors"}, {"rows": 0}):
        entries = json.loads(good)
        entries["matrix"]["parts"][0] |= change
        index.write_text(json.dumps(entries))
        with refuses("the parts of matrix do not cover it"):
            checkpoint.read_index(folder)
    index.write_text(good)
    shard = folder / "shard-00000.safetensors"
    tensors = load_file(shard)
    save_file({**tensors, "matrix": torch.zeros(5, 1)}, shard)  # would be broadcast silently
    with refuses("does not hold what index.json says of matrix"):
        checkpoint.read_tensors(folder, checkpoint.read_index(folder), {"matrix": torch.zeros(5, 3)})
    shard.write_bytes(b"no shard")
    with refuses("shard-00000.safetensors cannot be read"):
        checkpoint.read_tensors(folder, checkpoint.read_index(folder), {"matrix": torch.zeros(5, 3)})


def test_pickled_state_is_not_read(tmp_path: Path) -> None:
    """torch.distributed.checkpoint stores a pickle, which can execute code when it is loaded."""
    (tmp_path / ".metadata").write_bytes(pickle.dumps(print))
    with refuses("index.json does not describe training state .*; remove the checkpoint"):
        checkpoint.read_index(tmp_path)

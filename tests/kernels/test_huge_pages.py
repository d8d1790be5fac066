"""Memory moves to huge pages in place: same addresses, same values."""

import mmap
from pathlib import Path

import pytest
import torch

from keysift.kernels.cpu.huge_pages import PAGE, use_huge_pages
from keysift.models.architecture import MultiscreenArch
from keysift.models.registry import build, configure
from keysift.nn import decode_step

SMAPS = Path("/proc/self/smaps")


def huge_bytes(address: int) -> int:
    """Bytes of huge pages in the mapping that holds this address."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            first, last = (int(part, 16) for part in name.split("-"))
            inside = first <= address < last
        elif inside and name == "AnonHugePages:":
            return int(rest[0]) * 1024
    return 0


def supported() -> bool:
    probe = torch.ones(8 * PAGE // 4)
    use_huge_pages([probe])
    return SMAPS.exists() and huge_bytes(probe.data_ptr() + 4 * PAGE) > 0


def test_values_and_addresses_stay() -> None:
    if not supported():
        pytest.skip("this system cannot move memory to huge pages")
    # A mapping of its own: an allocator may return memory that an earlier test has moved. The pages around it keep
    # their advice, so the kernel does not join it to a neighbour that has huge pages.
    memory = mmap.mmap(-1, 7 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    x = torch.frombuffer(memory, dtype=torch.int32, offset=PAGE, count=5 * PAGE // 4).view(5, -1)
    x.copy_(torch.arange(x.numel()).view(5, -1))
    memory.madvise(mmap.MADV_HUGEPAGE, PAGE, 5 * PAGE)
    small = [torch.full((1000,), float(n)) for n in range(5)]
    address, before = x.data_ptr(), huge_bytes(x.data_ptr() + PAGE)
    use_huge_pages([x[1:2], *small, x.new_empty(0)])  # a view counts with its storage
    assert x.data_ptr() == address
    assert huge_bytes(address + PAGE) >= before + 3 * PAGE
    assert torch.equal(x.flatten(), torch.arange(x.numel(), dtype=torch.int32))
    assert all((t == n).all() for n, t in enumerate(small))


def test_little_memory_and_other_devices_are_left() -> None:
    x = torch.ones(PAGE // 4)
    before = huge_bytes(x.data_ptr()) if SMAPS.exists() else 0
    use_huge_pages([x, torch.empty(100 * PAGE, device="meta")])
    assert (huge_bytes(x.data_ptr()) if SMAPS.exists() else 0) == before


def test_weights_and_cache_of_the_compiled_step_move(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    monkeypatch.setattr(decode_step, "use_huge_pages", lambda tensors: moved.extend(x.data_ptr() for x in tensors))
    model = build(configure(MultiscreenArch.psi(2), vocab_size=9, context=64), torch.Generator().manual_seed(0)).eval()
    cache = model.cache(1)
    with torch.inference_mode():
        for token in (1, 2):
            model(torch.tensor([[token]]), cache=cache)
    assert {p.data_ptr() for p in model.parameters()} <= set(moved)
    for store in cache.layers:
        assert store.prepared is not None
        assert {x.data_ptr() for x in (*store.entries.values(), store.prepared.blocks)} <= set(moved)

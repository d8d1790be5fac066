"""The library with several threads: concurrent calls, different thread counts, and after fork."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend
from tests.machine import needs_kernel

pytestmark = needs_kernel


def output(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (1 + torch.randn(1, 4, 300, 16, generator=generator) for _ in range(3))
    q.requires_grad_()
    out = attend("screening", q, k, v, backend="screening_cpu")
    out.sum().backward()
    assert q.grad is not None
    return torch.cat((out.detach(), q.grad), dim=-1)


def test_several_python_threads_at_once() -> None:
    sequential = [output(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for actual, expected in zip(pool.map(output, range(8)), sequential, strict=True):
                assert torch.equal(actual, expected)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    before = torch.get_num_threads()
    try:
        actual = []
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            actual.append(output(0))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, actual[0]) for x in actual)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_fork() -> None:
    expected = output(0).double().sum().item()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, repr(output(0).double().sum().item()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert float(pipe.read()) == pytest.approx(expected, rel=1e-12)
    assert os.waitpid(child, 0)[1] == 0

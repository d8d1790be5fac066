"""Loading the compiled library: why it cannot run is a code for programs and a sentence for people."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from keysift.kernels import native
from keysift.kernels.attend import attend, explain
from keysift.kernels.native import Code, Reason
from keysift.mechanisms import find
from tests.machine import needs_kernel
from tests.refusals import refuses

COMPILER = shutil.which("c++")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A library of its own, so that what is found out about it is not remembered for the real one."""
    return Path(shutil.copy(native.LIBRARY, tmp_path / "libkeysift_cpu.so"))


def code(path: Path, monkeypatch: pytest.MonkeyPatch) -> Code | None:
    monkeypatch.setattr(native, "LIBRARY", path)
    reason = native.unusable()
    return None if reason is None else reason.code


def test_a_missing_library_is_said_and_worked_around(monkeypatch: pytest.MonkeyPatch) -> None:
    assert code(Path("nowhere.so"), monkeypatch) is Code.NOT_BUILT
    q = torch.randn(1, 2, 8, 4)
    choice = explain("screening", q, q, q)
    assert choice.backend == "dense"
    assert "no C++ compiler when keysift was installed" in choice.declined["screening_cpu"]
    with refuses("the compiled kernel was not built"):
        attend(find("screening"), q, q, q, backend="screening_cpu")
    with refuses("was not built .* leave backend='auto'"):
        native.library()
    assert native.instruction_set() is None
    assert native.instruction_sets() == []


def test_a_compiled_graph_works_around_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", Path("nowhere.so"))
    q = torch.randn(1, 2, 8, 4)
    compiled = torch.compile(lambda x: attend("screening", x, x, x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q), attend("screening", q, q, q))


def test_a_file_that_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libkeysift_cpu.so"
    broken.write_bytes(b"not a library")
    assert code(broken, monkeypatch) is Code.DOES_NOT_LOAD


@needs_kernel
@pytest.mark.parametrize("name", list(native.STRUCTURES))
def test_a_library_built_with_other_structures_is_refused(
    name: str, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code(copied, monkeypatch) is None
    native._load.cache_clear()

    class Longer(ctypes.Structure):
        _fields_ = [*native.STRUCTURES[name]._fields_, ("added", ctypes.c_int64)]

    monkeypatch.setitem(native.STRUCTURES, name, Longer)
    assert code(copied, monkeypatch) is Code.STALE
    with refuses(f"libkeysift_cpu.so is stale: it was built with '{name} .* added .* reinstall keysift"):
        native.library()
    native._load.cache_clear()


@needs_kernel
def test_a_field_that_moved_is_seen(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapped(ctypes.Structure):
        _fields_ = [*reversed(native.Gradients._fields_)]

    monkeypatch.setitem(native.STRUCTURES, "keysift_gradients", Swapped)
    assert ctypes.sizeof(Swapped) == ctypes.sizeof(native.Gradients)
    assert code(copied, monkeypatch) is Code.STALE


@pytest.mark.skipif(COMPILER is None, reason="NO C++ COMPILER TO BUILD A STALE LIBRARY WITH")
def test_a_library_without_our_functions_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, built = tmp_path / "old.cpp", tmp_path / "libkeysift_cpu.so"
    source.write_text('extern "C" int keysift_forward(void*) { return 0; }')
    subprocess.run([str(COMPILER), "-shared", "-fPIC", str(source), "-o", str(built)], check=True)
    assert code(built, monkeypatch) is Code.STALE


@needs_kernel
def test_an_unknown_instruction_set_is_named(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSIFT_ISA", "mmx")
    assert code(copied, monkeypatch) is Code.ISA_UNKNOWN
    with refuses("KEYSIFT_ISA=mmx names no instruction set; unset it, or say one of: .*plain"):
        native.library()


def test_only_what_runs_here_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Avx2Only:
        def keysift_isa_status(self, name: bytes) -> int:
            return native.ISA_NOT_HERE

        def keysift_isas(self) -> bytes:
            return b"avx2 plain"

    monkeypatch.setenv("KEYSIFT_ISA", "avx512")
    said = "KEYSIFT_ISA=avx512 cannot run on this machine; unset it, or say one of: avx2, plain"
    assert native._wrong_isa(Avx2Only()) == Reason(Code.ISA_NOT_HERE, said)


def test_no_file_is_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    before = native.unusable()

    def look(path: Path) -> bool:
        raise AssertionError(f"looked for {path}")

    monkeypatch.setattr(Path, "exists", look)
    assert native.unusable() == before


WRONG = """
import torch
from dataclasses import replace
from keysift import Positions, attend
q = torch.ones(1, 1, 3, 2)
positions = replace(Positions.packed([[3]]), pieces=torch.tensor([[0, 0, 3, 0, 4, 0]]))
attend("screening", q, q, q, positions=positions)
"""


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("flags", [[], ["-O"]], ids=["plain", "optimised"])
def test_what_the_kernel_refuses_is_raised_without_asserts_too(flags: list[str]) -> None:
    """Asserts are off under -O, and an unchecked refusal would hand out uninitialised memory."""
    done = subprocess.run([sys.executable, *flags, "-c", WRONG], check=False, capture_output=True, text=True)
    assert "UnsupportedError: the compiled kernel refused the call: piece 0 (row 0" in done.stderr, done.stderr

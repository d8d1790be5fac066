"""Loading the compiled library, and the reasons why it is unavailable."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from keysift.kernels.attend import attend, explain
from keysift.kernels.backend import Code, Unavailable
from keysift.kernels.cpu import library
from keysift.mechanisms import find
from tests.machine import needs_kernel
from tests.refusals import refuses

COMPILER = shutil.which("c++")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the library, so that the cached result of the real one is not affected."""
    return Path(shutil.copy(library.LIBRARY, tmp_path / "libkeysift_cpu.so"))


def unavailable_code(path: Path, monkeypatch: pytest.MonkeyPatch) -> Code | None:
    monkeypatch.setattr(library, "LIBRARY", path)
    reason = library.unavailable()
    return None if reason is None else reason.code


def test_a_missing_library_is_reported_and_auto_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable_code(Path("nowhere.so"), monkeypatch) is Code.NOT_BUILT
    q = torch.randn(1, 2, 8, 4)
    choice = explain("screening", q, q, q)
    assert choice.backend == "dense"
    assert "no C++ compiler when keysift was installed" in choice.declined["screening_cpu"]
    with refuses("the compiled kernel was not built"):
        attend(find("screening"), q, q, q, backend="screening_cpu")
    with refuses("was not built .* leave backend='auto'"):
        library.load()
    assert library.instruction_set() is None
    assert library.instruction_sets() == []


def test_a_compiled_graph_falls_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", Path("nowhere.so"))
    q = torch.randn(1, 2, 8, 4)
    compiled = torch.compile(lambda x: attend("screening", x, x, x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q), attend("screening", q, q, q))


def test_a_file_that_is_not_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libkeysift_cpu.so"
    broken.write_bytes(b"not a library")
    assert unavailable_code(broken, monkeypatch) is Code.DOES_NOT_LOAD


@needs_kernel
@pytest.mark.parametrize("name", list(library.STRUCTURES))
def test_a_library_built_with_other_structures_is_refused(
    name: str, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unavailable_code(copied, monkeypatch) is None
    library._load.cache_clear()

    class Longer(ctypes.Structure):
        _fields_ = [*library.STRUCTURES[name]._fields_, ("added", ctypes.c_int64)]

    monkeypatch.setitem(library.STRUCTURES, name, Longer)
    assert unavailable_code(copied, monkeypatch) is Code.STALE
    with refuses(f"libkeysift_cpu.so is stale: it was built with '{name} .* added .* reinstall keysift"):
        library.load()
    library._load.cache_clear()


@needs_kernel
def test_a_moved_field_is_detected(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapped(ctypes.Structure):
        _fields_ = [*reversed(library.Gradients._fields_)]

    monkeypatch.setitem(library.STRUCTURES, "keysift_gradients", Swapped)
    assert ctypes.sizeof(Swapped) == ctypes.sizeof(library.Gradients)
    assert unavailable_code(copied, monkeypatch) is Code.STALE


@pytest.mark.skipif(COMPILER is None, reason="NO C++ COMPILER TO BUILD A STALE LIBRARY WITH")
def test_a_library_without_our_functions_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, built = tmp_path / "old.cpp", tmp_path / "libkeysift_cpu.so"
    source.write_text('extern "C" int keysift_forward(void*) { return 0; }')
    subprocess.run([str(COMPILER), "-shared", "-fPIC", str(source), "-o", str(built)], check=True)
    assert unavailable_code(built, monkeypatch) is Code.STALE


@needs_kernel
def test_an_unknown_instruction_set_is_named(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSIFT_ISA", "mmx")
    assert unavailable_code(copied, monkeypatch) is Code.ISA_UNKNOWN
    with refuses("KEYSIFT_ISA=mmx is not an instruction set; unset it, or use one of: .*plain"):
        library.load()


def test_the_message_lists_available_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    class Avx2Only:
        def keysift_isa_status(self, name: bytes) -> int:
            return library.ISA_NOT_HERE

        def keysift_isas(self) -> bytes:
            return b"avx2 plain"

    monkeypatch.setenv("KEYSIFT_ISA", "avx512")
    message = "KEYSIFT_ISA=avx512 cannot run on this machine; unset it, or use one of: avx2, plain"
    assert library._wrong_isa(Avx2Only()) == Unavailable(Code.ISA_NOT_HERE, message)


def test_the_result_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.unavailable()

    def fail(path: Path) -> bool:
        raise AssertionError(f"checked again whether {path} exists")

    monkeypatch.setattr(Path, "exists", fail)
    assert library.unavailable() == before


INVALID_CALL = """
import torch
from dataclasses import replace
from keysift import Positions, attend
q = torch.ones(1, 1, 3, 2)
positions = replace(Positions.packed([[3]]), segments=torch.tensor([[0, 0, 3, 0, 4, 0]]))
attend("screening", q, q, q, positions=positions)
"""


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("flags", [[], ["-O"]], ids=["plain", "optimised"])
def test_errors_of_the_kernel_raise_without_asserts_too(flags: list[str]) -> None:
    """Asserts are off with -O, and an unchecked error would return uninitialised memory."""
    process = subprocess.run([sys.executable, *flags, "-c", INVALID_CALL], check=False, capture_output=True, text=True)
    assert "UnsupportedError: the compiled kernel rejected the call: segment 0 (row 0" in process.stderr, process.stderr

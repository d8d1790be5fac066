"""Faults of the kernels, seeded one at a time: the comparison with the definition must notice each.

The faults are those of the CPU kernel's tests and of public Triton ports. Triton reads the source of a kernel from its
file, so a changed copy of the whole package of kernels is written and imported under another name.
"""

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from keysift.core.errors import DisagreementError
from keysift.kernels.gpu import screening_launch, sums_launch
from keysift.kernels.positions import Positions
from keysift.mechanisms import find
from keysift.mechanisms.screening import SCREENING
from keysift.verify.agreement import check_agreement, draw_inputs
from tests.gpu.interpreted import needs_interpreter
from tests.kernels.test_screening_cpu import screening_inputs

PACKAGE = "keysift.kernels.gpu.device_code"
FOLDER = Path(screening_launch.__file__).parent / "device_code"
pytestmark = needs_interpreter


class Fault(NamedTuple):
    """A piece of a file, which must occur there, and its replacement."""

    file: str
    right: str
    wrong: str


SCREENING_FAULTS = {
    "MiPE without pi": Fault("elements", "c * c / (2.0 * w)", "c * c / (6.2831853 * w)"),
    "angles in fp32 without reduction": Fault(
        "elements",
        "((position * rate) >> 31).to(tl.int32)",
        "(position.to(tl.float32) * (rate.to(tl.float32) * 4.656612873077393e-10)).to(tl.int32)",
    ),
    "window rounded down": Fault("work", "tl.ceil(tl.minimum(reach, 1e18))", "tl.floor(tl.minimum(reach, 1e18))"),
    "mask off by one": Fault("work", "clamp32(base + 1,", "clamp32(base + 2,"),
    "window off by one": Fault("work", "clamp32(base - span + 1,", "clamp32(base - span,"),
    "keys of the block before the window are not read": Fault(
        "work", "clamp32(at - span + 1,", "clamp32(at - span + 9,"
    ),
    "documents share keys": Fault("work", "tl.load(at + 3)", "tl.load(at + 3) * 0"),
    "offset of a segment is lost": Fault("work", "distance = tl.load(at + 5)", "distance = tl.load(at + 5) * 0"),
    "tanh by exponentials near zero": Fault("elements", "n < 1.0, top / bottom", "n < 0.0, top / bottom"),
    "TanhNorm slope by subtraction": Fault("elements", "n < 1.0, rest", "n < 0.0, rest"),
    "values of failing blocks only": Fault(
        "screening_forward", "(t != 0.0).to(tl.int32)) > 0", "(t != 0.0).to(tl.int32)) > 1"
    ),
    "values not at unit length": Fault(
        "screening_forward", "values.to(tl.float32) * v_inverse[:, None]", "values.to(tl.float32)"
    ),
    "relevance not squared": Fault("screening_forward", "(root * root).to(kind)", "root.to(kind)"),
    "kv tile of the wrong group": Fault(
        "screening_forward", "kv = (tile // shape.GROUP)", "kv = (tile % (tl.num_programs(1) // shape.GROUP))"
    ),
    "no gradient of the acceptance": Fault(
        "screening_backward", "tl.store(slopes, tl.sum(d_acceptance, 0))", "tl.store(slopes, 0.0)"
    ),
    "no gradient of the window's fade": Fault(
        "screening_backward", "tl.store(slopes + 1, tl.sum(d_reach, 0))", "tl.store(slopes + 1, 0.0)"
    ),
    "no gradient of the window's rotation": Fault(
        "screening_backward", "tl.store(slopes + 2, tl.sum(d_angle, 0))", "tl.store(slopes + 2, 0.0)"
    ),
    "dq is not rotated back": Fault("screening_backward", "d0 * c + d1 * s, d1 * c - d0 * s", "d0, d1"),
    "gradient of a unit vector without projection": Fault("elements", "d - unit * along[:, None]", "d"),
    "queries beyond the window are visited, later ones not": Fault(
        "work", "key_stop - 1 - offset + span", "key_stop - 9 - offset + span"
    ),
    "dk of one tile of the group only": Fault(
        "screening_backward", "for member in range(shape.GROUP):", "for member in range(1):"
    ),
}
SUMS_FAULTS = {
    "sums are not rescaled": Fault("sums", "sums = sums * factor[:, None]", "sums = sums * 1.0"),
    "Softpick's negative scores are not counted": Fault(
        "sums", "tl.sum(terms if shape.KIND == 5 else w, 1)", "tl.sum(w, 1)"
    ),
    "exp(x) - 1 by subtraction": Fault("sums", "tl.abs(x) < 0.5", "tl.abs(x) < 0.0"),
    "slope of negative scores is lost": Fault("sums", "dx = tl.where(x < 0.0, root * (root * delta), dx)", "dx = dx"),
    "dk without the scale": Fault("sums", "dx * scale, shape.K)\n    dv_at", "dx, shape.K)\n    dv_at"),
}


@pytest.fixture
def seeded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launch changed kernels."""
    fault: Fault = request.param
    name = f"faulty_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / name
    folder.mkdir()
    for path in FOLDER.glob("*.py"):
        text = path.read_text().replace(PACKAGE, name)
        if path.stem == fault.file:
            assert fault.right in text, f"{fault.file}.py has no {fault.right!r}; update the fault"
            text = text.replace(fault.right, fault.wrong)
        (folder / path.name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module, kernels in (
        (screening_launch, "screening_forward"),
        (screening_launch, "screening_backward"),
        (sums_launch, "sums"),
    ):
        monkeypatch.setattr(module, kernels, importlib.import_module(f"{name}.{kernels}"))
    yield
    for module_name in [loaded for loaded in sys.modules if loaded.startswith(name)]:
        del sys.modules[module_name]


def check_screening() -> None:
    """Documents of several blocks, groups, rotation and fade; and a few queries after a cache, with small outputs."""
    positions = Positions.packed([[3, 17, 70]], 90)
    tensors = screening_inputs(90, 90, window=[9.5, 40.0, 9.5, 40.0], groups=2)
    one = {name: value[:1] if name in "qkv" else value for name, value in tensors.items()}
    one["v"] = one["v"][..., :16] * 3
    check_agreement(SCREENING, one, backend="screening_gpu", positions=positions)
    few = screening_inputs(4, 40, window=[3.5, math.inf])
    few["k"] = few["k"] * 0.2 + few["q"].mean(2, keepdim=True)
    few["v"] = few["v"][..., :3]
    few["acceptance"] = few["acceptance"] * 0.1
    cached = Positions.padded([0, 0], 4, start=[36, 1036]).with_cached_keys([0, 1000], [40, 40], 40)
    results = check_agreement(SCREENING, few, backend="screening_gpu", positions=cached)
    assert (results["output"] != 0).any(), "zeros agree with everything"


def check_sums() -> None:
    mechanism = find("softpick")
    draws = [draw_inputs(mechanism, 20, 40, heads=2, groups=1, seed=seed) for seed in range(2)]
    draws[1]["q"] = draws[1]["q"] * 1e-3
    for draw in draws:
        draw["k"] = draw["k"] * draw["k"].new_tensor([1.0, -1.0]).repeat(20)[:, None]
        check_agreement(mechanism, draw, backend="sums_gpu")


def _parameters(faults: dict[str, Fault]) -> list[object]:
    return [pytest.param(fault, id=name, marks=pytest.mark.slow) for name, fault in faults.items()]


@pytest.mark.parametrize("seeded", _parameters(SCREENING_FAULTS), indirect=True)
def test_fault_of_screening_is_noticed(seeded: None) -> None:
    with pytest.raises(DisagreementError):
        check_screening()


@pytest.mark.parametrize("seeded", _parameters(SUMS_FAULTS), indirect=True)
def test_fault_of_sums_is_noticed(seeded: None) -> None:
    with pytest.raises(DisagreementError):
        check_sums()


@pytest.mark.slow
def test_the_checks_pass_without_a_fault() -> None:
    check_screening()
    check_sums()

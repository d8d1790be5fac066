"""Seeded faults: one line of the source changed at a time, and the tests named beside it must go red.

Each is a fault seen in public ports (screening.md of the specification lists them) or a classic of its kind.
"""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house.seeded import run_tests
from tests.machine import needs_kernel

ROOT = Path(__file__).parent.parent.parent
SCREENING = "tests/mechanisms/test_screening.py"
PROMISES = "tests/mechanisms/test_promises.py"
GRADIENTS = "tests/mechanisms/test_gradients.py"
ORACLES = "tests/mechanisms/test_oracles.py"
ATTEND = "tests/kernels/test_attend.py"
THRESHOLDS = "tests/kernels/test_thresholds.py"


class Fault(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str
    tests: str
    only: str = ""
    kernel: bool = False  # found by tests that need it


FAULTS = [
    Fault("MiPE without pi", "mechanisms/screening.py", "gamma / (2 * w)", "gamma / (2 * math.pi * w)", SCREENING),
    Fault(
        "positions wrapped modulo the window",
        "mechanisms/screening.py",
        "at * rate[..., 0])\n    k_BHSK",
        "(at % window[..., 0].round()) * rate[..., 0])\n    k_BHSK",
        SCREENING,
    ),
    Fault(
        "angles in fp32 without reduction",
        "mechanisms/screening.py",
        "(2 * math.pi * (turns - turns.detach().floor())).to(x.dtype)",
        "2 * math.pi * turns.to(torch.float32).to(x.dtype)",
        SCREENING,
        "shifting or rotation",
    ),
    Fault(
        "positions in the activation type",
        "kernels/call.py",
        "distance = self.at[..., queries, None] - self.key_at[..., None, keys]",
        "distance = self.at[..., queries, None].to(self.q.dtype) - self.key_at[..., None, keys].to(self.q.dtype)",
        ATTEND,
        "bf16_at_600",
    ),
    Fault(
        "causal mask aligned top-left",
        "kernels/positions.py",
        "first=start + keys - queries",
        "first=start",
        ATTEND,
        "stands_on_the_last_key",
    ),
    Fault(
        "mask off by one",
        "kernels/call.py",
        "distance >= 0 if self.causal",
        "distance >= -1 if self.causal",
        PROMISES,
        "softmax-CAUSAL or sigmoid-CAUSAL",
    ),
    Fault(
        "window one position short",
        "mechanisms/screening.py",
        "(distance < window)",
        "(distance < window - 1)",
        SCREENING,
        "window_edge",
    ),
    Fault(
        "no gradient for the window",
        "mechanisms/screening.py",
        "mipe_rate(window.double()",
        "mipe_rate(window.double().detach()",
        GRADIENTS,
        "screening",
    ),
    Fault(
        "no gradient for the acceptance",
        "mechanisms/screening.py",
        "trim(x_BHTS, acceptance)",
        "trim(x_BHTS, acceptance.detach())",
        GRADIENTS,
        "screening",
    ),
    Fault(
        "screening rows normalised",
        "mechanisms/screening.py",
        "return trim(x_BHTS, acceptance) * fade(distance_BHTS, reach)",
        "return parts.share(trim(x_BHTS, acceptance) * fade(distance_BHTS, reach))",
        PROMISES,
        "screening-ABSOLUTE",
    ),
    Fault(
        "window expansion also in the rotation",
        "kernels/call.py",
        "aligned[scalar.name] = _view(",
        'aligned["window" if scalar.name == "reach" else scalar.name] = aligned[scalar.name] = _view(',
        SCREENING,
        "expansion",
    ),
    Fault(
        "empty rows attend to everything",
        "kernels/dense.py",
        "return torch.where(keep, mechanism.rule.weigh(maps, visible, applying(mechanism, scalars)), 0.0)",
        "return mechanism.rule.weigh(maps, visible, applying(mechanism, scalars))",
        GRADIENTS,
        "see_nothing and sigmoid",
    ),
    Fault(
        "empty rows give scalars NaN",
        "mechanisms/parts.py",
        "m = torch.where(top == -math.inf, 0.0, top)",
        "m = top",
        GRADIENTS,
        "see_nothing and differential",
    ),
    Fault(
        "keys repeated before pairing",
        "kernels/dense.py",
        "k = call.k.to(carry).unflatten(1, (-1, key_maps))  # type: ignore[no-untyped-call]\n    k = repeated(k, each)",
        "k = repeated(call.k.to(carry), each)\n    k = k.unflatten(1, (-1, key_maps))",
        ORACLES,
        "differential",
    ),
    Fault(
        "masked keys count in Softpick",
        "mechanisms/rules.py",
        "total = torch.where(keep, bottom, 0.0)",
        "total = torch.where(keep, bottom, torch.exp(-m))",
        ORACLES,
        "softpick",
    ),
    Fault(
        "gradient of alpha dropped",
        "mechanisms/entmax.py",
        "if not ctx.needs_input_grad[2]:",
        "if True:",
        GRADIENTS,
        "alpha_entmax",
    ),
    Fault(
        "the sink scaled like a score",
        "mechanisms/sink.py",
        "return sink\n",
        "return 0.35 * sink\n",
        ORACLES,
        "sink",
    ),
    Fault(
        "visible keys counted as all keys",
        "mechanisms/rules.py",
        "return self.keep_BHTS.sum(-1, keepdim=True)",
        "return self.keep_BHTS.new_full((1,), self.keep_BHTS.shape[-1], dtype=torch.int64)",
        ORACLES,
        "step_at_a_time",
    ),
    Fault(
        "a threshold that sees one key less",
        "kernels/thresholds_cpu.py",
        "yield Block(some, rows, columns, offset + start + 1)",
        "yield Block(some, rows, columns, offset + start)",
        THRESHOLDS,
        kernel=True,
    ),
    Fault(
        "no gradient for a learned order",
        "kernels/thresholds_cpu.py",
        "*found, dorders if learned else None, None, None, None",
        "*found, None, None, None, None",
        THRESHOLDS,
        "alpha_entmax",
        kernel=True,
    ),
    Fault(
        "keys of the first block only",
        "kernels/by_rows.py",
        "if dx is not None and K in to:",
        "if dx is not None and K in to and rows.start == 0:",
        "tests/kernels/test_by_rows.py",
    ),
    Fault(
        "a ring read from its first slot",
        "nn/store.py",
        'self.entries["v"], self.ring_G2, first, keys)',
        'self.entries["v"], self.ring_G2, [0] * len(first), keys)',
        "tests/models/test_rings.py",
        "same_bits",
        kernel=True,
    ),
    Fault(
        "a promise claimed",
        "mechanisms/softmax.py",
        "            Promise.CAUSAL,",
        "            Promise.CAUSAL,\n            Promise.ABSOLUTE,",
        PROMISES,
        "softmax-ABSOLUTE",
    ),
    Fault(
        "a promise forgotten",
        "mechanisms/screening.py",
        "            Promise.ABSOLUTE,\n",
        "",
        PROMISES,
        "screening-ABSOLUTE",
    ),
]


def red(tmp_path: Path, fault: Fault) -> subprocess.CompletedProcess[str]:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source)
    path = source / "keysift" / fault.file
    text = path.read_text()
    assert text.count(fault.right) == 1, f"{fault.file} no longer holds exactly one {fault.right!r}"
    path.write_text(text.replace(fault.right, fault.wrong))
    only = ["-k", fault.only] if fault.only else []
    return run_tests(source, ROOT, "-x", fault.tests, *only)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.name, marks=needs_kernel if fault.kernel else ()) for fault in FAULTS]
)
def test_fault_is_caught(fault: Fault, tmp_path: Path) -> None:
    done = red(tmp_path, fault)
    assert done.returncode == 1, f"the suite stayed green:\n{done.stdout[-2000:]}"
    assert "failed" in done.stdout


@pytest.mark.slow
def test_without_a_fault_the_same_run_is_green(tmp_path: Path) -> None:
    """Otherwise every fault above could be red for another reason."""
    done = red(tmp_path, Fault("none", "core/errors.py", "Catch this one", "Catch this one", SCREENING))
    assert done.returncode == 0, done.stdout[-2000:]

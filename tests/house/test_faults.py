"""Faults of the mathematics and its kernels, seeded one at a time: the tests named beside each must fail.

Each fault was found in a public port of the mechanism or is common in similar code.
"""

import pytest

from tests.house import mechanism_faults
from tests.house.seeded import Fault, is_caught, run_with, seed
from tests.machine import needs_kernel

SCREENING = "tests/mechanisms/test_screening.py"
PROMISES = "tests/mechanisms/test_promises.py"
GRADIENTS = "tests/mechanisms/test_gradients.py"
ORACLES = "tests/mechanisms/test_oracles.py"
ATTEND = "tests/kernels/test_attend.py"
THRESHOLDS = "tests/kernels/test_thresholds.py"
DECODE = "tests/models/test_decode.py"
TILE = "tests/kernels/test_tile_cpu.py"
FUSED = "tests/nn/test_fused_tiles.py"


FAULTS = [
    Fault("MiPE without pi", "mechanisms/screening.py", "gamma / (2 * w)", "gamma / (2 * math.pi * w)", SCREENING),
    Fault(
        "positions wrapped modulo the window",
        "mechanisms/screening.py",
        "at * rate[..., 0]",
        "(at % window[..., 0].round()) * rate[..., 0]",
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
        "start + keys - queries",
        "start",
        ATTEND,
        "aligned_with_the_last_key",
    ),
    Fault(
        "mask off by one",
        "kernels/call.py",
        "distance >= (0 if self.mechanism.own_key else 1)",
        "distance >= -1",
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
        "mipe_rate(window.double(), self.threshold)",
        "mipe_rate(window.double().detach(), self.threshold)",
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
        "return trim(x_BHTS, acceptance) * fade(distance_BHTS, effective_window)",
        "return parts.normalise(trim(x_BHTS, acceptance) * fade(distance_BHTS, effective_window))",
        PROMISES,
        "screening-ABSOLUTE",
    ),
    Fault(
        "window expansion also in the rotation",
        "kernels/scalars.py",
        "return aligned",
        'aligned["window"] = aligned.get("effective_window", aligned.get("window"))\nreturn aligned',
        SCREENING,
        "expansion",
    ),
    Fault(
        "empty rows attend to everything",
        "kernels/eager/dense.py",
        "return torch.where(keep, mechanism.rule.weigh(maps, visible, with_scalars(mechanism, scalars)), 0.0)",
        "return mechanism.rule.weigh(maps, visible, with_scalars(mechanism, scalars))",
        GRADIENTS,
        "no_visible_keys and sigmoid",
    ),
    Fault(
        "empty rows give scalars NaN",
        "mechanisms/parts.py",
        "m = torch.where(top == -math.inf, 0.0, top)",
        "m = top",
        GRADIENTS,
        "no_visible_keys and differential",
    ),
    Fault(
        "keys repeated before pairing",
        "kernels/eager/dense.py",
        "k = call.k.to(dtype).unflatten(1, (-1, key_maps))\n"
        "k = repeat_heads(k, group).expand(-1, -1, maps, -1, -1).flatten(1, 2)",
        "k = repeat_heads(call.k.to(dtype), group).unflatten(1, (-1, key_maps))\n"
        "k = k.expand(-1, -1, maps, -1, -1).flatten(1, 2)",
        ORACLES,
        "differential",
    ),
    Fault(
        "masked keys count in Softpick",
        "mechanisms/rules.py",
        "torch.where(keep, bottom, 0.0)",
        "torch.where(keep, bottom, torch.exp(-m))",
        ORACLES,
        "softpick",
    ),
    Fault(
        "gradient of alpha dropped",
        "mechanisms/entmax.py",
        "not ctx.needs_input_grad[2]",
        "True",
        GRADIENTS,
        "alpha_entmax",
    ),
    Fault(
        "the sink scaled like a score",
        "mechanisms/sink.py",
        "return sink",
        "return 0.35 * sink",
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
        "a threshold without the last key",
        "kernels/cpu/thresholds.py",
        "yield Block(batch, rows, columns, offset + start + 1 - first_key)",
        "yield Block(batch, rows, columns, offset + start - first_key)",
        THRESHOLDS,
        kernel=True,
    ),
    Fault(
        "no gradient for a learned order",
        "kernels/cpu/thresholds.py",
        "*grads, dorders if order_grad else None, None, None, None, None",
        "*grads, None, None, None, None, None",
        THRESHOLDS,
        "alpha_entmax",
        kernel=True,
    ),
    Fault(
        "keys of the first block only",
        "kernels/eager/rows.py",
        "dx is not None and K in grads",
        "dx is not None and K in grads and rows.start == 0",
        "tests/kernels/test_by_rows.py",
    ),
    Fault(
        "a ring read from its first slot",
        "nn/layer_cache.py",
        'RingBuffers(self.entries["k"], self.entries["v"], self.ring_G2, first, keys)',
        'RingBuffers(self.entries["k"], self.entries["v"], self.ring_G2, [0] * len(first), keys)',
        "tests/models/test_rings.py",
        "bit_identical",
        kernel=True,
    ),
    Fault(
        "no gradient for the scale of a tile",
        "kernels/cpu/tile.py",
        "return (*grads, None, None, None, None, None, None)",
        "return (*grads[:4], None, None, None, None, None, None, None)",
        TILE,
        "without_a_gate",
        kernel=True,
    ),
    Fault(
        "documents of another row",
        "kernels/positions.py",
        "torch.cat((segments[:, :1] - start, segments[:, 1:]), dim=1)",
        "torch.cat((segments[:, :1] * 0, segments[:, 1:]), dim=1)",
        FUSED,
        "rows_in_pieces",
        kernel=True,
    ),
    Fault(
        "a piece without the oldest key of the window",
        "nn/fused_tiles.py",
        "first = max(0, held - past)",
        "first = max(0, held - past) + (held > 1)",
        FUSED,
        "long_rows",
        kernel=True,
    ),
    Fault(
        "kept keys one token late",
        "nn/fused_tiles.py",
        "work_SX[end - held : end, keys_and_values]",
        "work_SX[end - held - 1 : end - 1, keys_and_values]",
        FUSED,
        "long_rows",
        kernel=True,
    ),
    Fault(
        "hooks of a projection skipped",
        "nn/projection.py",
        "type(module) is nn.Linear and module.bias is None and not has_hooks(module)",
        "type(module) is nn.Linear and module.bias is None",
        FUSED,
        "hooks_run",
        kernel=True,
    ),
    Fault(
        "a tap that is not asked",
        "nn/tile.py",
        "any(tap.has_listeners or has_hooks(tap) for tap in taps)",
        "any(has_hooks(tap) for tap in taps)",
        FUSED,
        "tap_reads",
        kernel=True,
    ),
    Fault(
        "prepared keys kept although other writers replaced them",
        "nn/layer_cache.py",
        "torch.minimum(tokens_B, torch.tensor(update.before), out=tokens_B)",
        "torch.minimum(tokens_B, tokens_B, out=tokens_B)",
        DECODE,
        "cropped",
        kernel=True,
    ),
    Fault(
        "the compiled step bound to the first buffers of a cache",
        "nn/decode_step.py",
        "layer_cache.entries is entries",
        "layer_cache.entries is not None",
        DECODE,
        "forward_pass",
        kernel=True,
    ),
    Fault(
        "replaced parameters not seen by the compiled step",
        "nn/decode_step.py",
        "self._replaced_parameter()",
        "False",
        "tests/models/test_decode_paths.py",
        "change_parameters",
        kernel=True,
    ),
    Fault(
        "a false promise stated",
        "mechanisms/softmax.py",
        "Promise.CAUSAL",
        "*(Promise.CAUSAL, Promise.ABSOLUTE)",
        PROMISES,
        "softmax-ABSOLUTE",
    ),
    Fault(
        "a true promise not stated",
        "mechanisms/screening.py",
        "Promise.ABSOLUTE",
        "Promise.NONNEGATIVE",
        PROMISES,
        "screening-ABSOLUTE",
    ),
]


each_fault = pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=needs_kernel if fault.kernel else ())
        for fault in (*FAULTS, *mechanism_faults.FAULTS)
    ],
)


@each_fault
def test_the_fault_applies(fault: Fault) -> None:
    seed(fault)


@pytest.mark.slow
@each_fault
def test_a_fault_is_caught(fault: Fault) -> None:
    is_caught(fault)


@pytest.mark.slow
def test_the_same_run_passes_without_a_fault() -> None:
    """Otherwise a fault could be caught for another reason."""
    mipe = FAULTS[0]
    outcome, imported = run_with(mipe._replace(wrong=mipe.right))
    assert imported
    assert outcome.code == 0, outcome.output[-2000:]


def test_a_fault_matches_code_not_its_format() -> None:
    reformatted = FAULTS[0]._replace(right="gamma/(  # a comment\n2*w)")
    assert seed(reformatted) == seed(FAULTS[0])


def test_a_fault_that_does_not_apply_names_itself() -> None:
    with pytest.raises(AssertionError, match=r"fault 'MiPE without pi': expected this code once in .*found it 0 times"):
        seed(FAULTS[0]._replace(right="gamma / (3 * w)"))

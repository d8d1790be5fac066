"""Faults of published forgetting, stick-breaking, threshold and position code, seeded one at a time.

The tests named beside each must fail. Each fault was found in the authors' code or in a public port.
"""

import pytest

from tests.house.seeded import Fault, is_caught, seed
from tests.machine import needs_kernel

GOLDEN = "tests/mechanisms/test_golden.py"
PUBLISHED = "tests/mechanisms/test_published_faults.py"
GRADIENTS = "tests/mechanisms/test_gradients.py"
STICKS = "tests/kernels/test_sticks.py"
FORGETTING = "tests/kernels/test_forgetting.py"
DECAYED = "tests/kernels/test_decayed.py"
SELECTIVE = "tests/kernels/test_selective_mask.py"
WINDOWS = "tests/kernels/test_windows.py"
RULES = "tests/mechanisms/test_rules.py"
SHIFT = "tests/models/test_token_shift.py"
LAYERS = "tests/models/test_layer_positions.py"
ROTARY = "tests/nn/test_rotary.py"
SCALING = "tests/nn/test_rope_scaling.py"

FAULTS = [
    Fault(
        "stick-breaking: logarithms rounded to bf16 before their sum",
        "mechanisms/rules.py",
        "newer_sums(log_left, breaking)",
        "newer_sums(log_left.bfloat16().to(log_left.dtype), breaking)",
        GOLDEN,
        "stick_breaking",
    ),
    Fault(
        "stick-breaking: the rest as one minus the sum",
        "mechanisms/rules.py",
        "torch.where(keep, log_left, 0.0).sum(-1, keepdim=True).exp()",
        "1 - w.sum(-1, keepdim=True)",
        STICKS,
        "rest_is_not_a_difference",
        kernel=True,
    ),
    Fault(
        "stick-breaking: oldest key first",
        "mechanisms/rules.py",
        "torch.nn.functional.pad(x[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)",
        "torch.nn.functional.pad(x[..., :-1], (1, 0)).cumsum(-1)",
        GOLDEN,
        "stick_breaking",
    ),
    Fault(
        "stick-breaking: key heads interleaved on one path",
        "kernels/eager/dense.py",
        "x.repeat_interleave(times, dim=1)",
        "x.repeat(1, times, *[1] * (x.ndim - 2))",
        STICKS,
        "groups_of_query_heads",
        kernel=True,
    ),
    Fault(
        "stick-breaking: the own key takes a share",
        "kernels/call.py",
        "distance >= (0 if self.mechanism.own_key else 1)",
        "distance >= 0",
        RULES,
        "row_map_of_a_user",
    ),
    Fault(
        "forget gates of the keys from j to the one before the query",
        "mechanisms/rules.py",
        "newer_sums(apply(self.forget).mT.expand_as(maps[0]), visible)",
        "newer_sums(apply(self.forget).mT.expand_as(maps[0]).roll(1, -1), visible)",
        FORGETTING,
        "golden",
    ),
    Fault(
        "a forget gate for each key head",
        "mechanisms/forgetting.py",
        "Per.HEAD_KEY",
        "Per.KEY",
        FORGETTING,
        "gate_belongs_to_a_query_head",
    ),
    Fault(
        "sums of forget gates in fp32",
        "kernels/cpu/decayed.py",
        "apply(rule.forget)[..., 0].double().cumsum(-1)",
        "apply(rule.forget)[..., 0].cumsum(-1).double()",
        FORGETTING,
        "loses_no_digits",
        kernel=True,
    ),
    Fault(
        "keys skipped by decay alone, whatever their scores",
        "kernels/cpu/decayed.py",
        "x.decay.take_along_dim(own_BT, dim=2) + VANISHED + above_BHT.double()",
        "x.decay.take_along_dim(own_BT, dim=2) + VANISHED",
        DECAYED,
        "first_key_is_read or scores_of_every_size",
        kernel=True,
    ),
    Fault(
        "FoX Pro: heads share the gain of a norm",
        "nn/attention.py",
        "self.weight.view(self.heads, 1, self.width)",
        "self.weight[: self.width]",
        SHIFT,
        "formulas_of_the_paper",
    ),
    Fault(
        "FoX Pro: a chunk after a cache starts from zeros",
        "nn/token_shift.py",
        "{name: y_B11X[:, 0].to(now[name].dtype) for name, y_B11X in latest.items()}",
        "{name: 0 * y_B11X[:, 0].to(now[name].dtype) for name, y_B11X in latest.items()}",
        SHIFT,
        "any_chunks",
    ),
    Fault(
        "FoX Pro: padding counts as the token before",
        "nn/token_shift.py",
        "torch.where(document_BT >= 0, number_BT, 0).cummax(1).values",
        "number_BT",
        SHIFT,
        "documents_and_padding",
    ),
    Fault(
        "selective attention: a row hides keys from itself",
        "kernels/selective_mask.py",
        "hidden - hidden.cumsum(2)",
        "-hidden.cumsum(2)",
        SELECTIVE,
        "numbers_of_the_definition",
    ),
    Fault(
        "selective attention: the first key can be hidden",
        "kernels/selective_mask.py",
        "older[:, :1] = False",
        "",
        SELECTIVE,
        "every_head_gets_the_mask",
    ),
    Fault(
        "selective attention: plain softmax in a cached step",
        "kernels/selective_mask.py",
        "tokens != keys",
        "False",
        SELECTIVE,
        "cached_step",
    ),
    Fault(
        "n as the index of the row in the call",
        "mechanisms/rules.py",
        "return self.keep_BHTS.sum(-1, keepdim=True)",
        "return torch.arange(1, self.keep_BHTS.shape[-2] + 1)[:, None]",
        PUBLISHED,
        "cached_step and (lssar or asentmax or tra)",
    ),
    Fault(
        "n counts padding on the left",
        "mechanisms/rules.py",
        "return self.keep_BHTS.sum(-1, keepdim=True)",
        "return self.keep_BHTS.shape[-1] - self.keep_BHTS.flip(-1).byte().argmax(-1, keepdim=True)",
        PUBLISHED,
        "padding_does_not_count",
    ),
    Fault(
        "Elastic-Softmax: tau in the dtype of the inputs",
        "kernels/cpu/rectified.py",
        "apply(rule.softmax.level, count).expand(*q.shape[:3], 1)",
        "((apply(rule.softmax.level, count) * count).to(call.v.dtype) / count).float().expand(*q.shape[:3], 1)",
        PUBLISHED,
        "scalars_are_not_rounded",
        kernel=True,
    ),
    Fault(
        "TRA: hidden keys have a score of 0",
        "kernels/eager/dense.py",
        "return torch.where(keep, mechanism.rule.weigh(maps, visible, with_scalars(mechanism, scalars)), 0.0)",
        "maps = tuple(torch.where(keep, x, 0.0) for x in maps)\n"
        "return mechanism.rule.weigh(maps, visible, with_scalars(mechanism, scalars))",
        PUBLISHED,
        "hidden_keys_have_no_weight and dense",
    ),
    Fault(
        "TRA and TDA: no gradient for beta",
        "mechanisms/threshold.py",
        "beta * (2 * count_BHT1.log()).sqrt()",
        "beta.detach() * (2 * count_BHT1.log()).sqrt()",
        PUBLISHED,
        "factor_of_the_threshold",
    ),
    Fault(
        "ASEntmax without its factor",
        "mechanisms/rules.py",
        "apply(self.factor, visible_count(visible.count_BHT1, x)) * x",
        "x",
        GOLDEN,
        "asentmax",
    ),
    Fault(
        "LSSAR: the power before the division",
        "mechanisms/rules.py",
        "(excess / torch.where(largest > 0, largest, 1.0)) ** apply(self.power)",
        "excess ** apply(self.power)",
        PUBLISHED,
        "lssar_does_not_underflow",
    ),
    Fault(
        "LSSAR: rounding chooses among equal keys",
        "mechanisms/rules.py",
        "top = torch.where(offset > 0, parts.visible_max(u, keep), 0.0)",
        "top = torch.zeros_like(offset)",
        PUBLISHED,
        "lssar_gives_equal_keys_nothing",
    ),
    Fault(
        "ALiBi by the position of the key, not by the distance",
        "kernels/call.py",
        "x - self.slopes[:, None, None].to(x.dtype) * distance",
        "x + self.slopes[:, None, None].to(x.dtype) * self.key_at[..., None, keys]",
        WINDOWS,
        "slopes_are_a_bias and (sigmoid_visible or softpick)",
    ),
    Fault(
        "a lens that does not know ALiBi",
        "lens/layer_view.py",
        "call.add_biases(each, Visible(keep, distance), bias)",
        "each",
        "tests/lens/test_inspection.py",
        "windows_slopes_and_gates and alibi",
    ),
    Fault(
        "a swap that keeps the own key",
        "lens/experiments/swap.py",
        "new.own_key",
        "call.mechanism.own_key",
        "tests/lens/test_experiments.py",
        "without_the_own_key",
    ),
    Fault(
        "ALiBi: one slope for each map",
        "kernels/cpu/decayed.py",
        "dense.repeat_heads(decay.expand(q.shape[0], call.heads, k.shape[2]), rule.maps)",
        "decay.repeat(1, rule.maps, 1).expand(*q.shape[:2], k.shape[2])",
        DECAYED,
        "two_maps_and_levels",
        kernel=True,
    ),
    Fault(
        "ALiBi: slopes of six heads as 2^(-8h/6)",
        "nn/position.py",
        "1 << (heads.bit_length() - 1)",
        "heads",
        LAYERS,
        "alibi_slopes",
    ),
    Fault(
        "a window of distances 0 to W",
        "kernels/call.py",
        "distance < self.window",
        "distance <= self.window",
        WINDOWS,
        "golden",
    ),
    Fault(
        "a window of distances 0 to W in fast blocks only",
        "kernels/regions.py",
        "distance_TS < self.window",
        "distance_TS <= self.window",
        WINDOWS,
        "regions_cover_each_visible_pair_once",
    ),
    Fault(
        "kept keys counted from the first entry of the cache",
        "kernels/positions.py",
        "torch.where(number < kept, start + number, joined.key_at)",
        "joined.key_at",
        LAYERS,
        "positions_of_layers_match_their_cache and kept",
    ),
    Fault(
        "partial RoPE with the rates of the whole width",
        "nn/rotary.py",
        "width if proportional else rotated",
        "width",
        ROTARY,
        "partial_and_proportional",
    ),
    Fault(
        "NTK: the base times s^(K/(K-1))",
        "nn/rope_scaling.py",
        "max(len(frequencies) - 1, 1)",
        "max(len(frequencies) - 0.5, 1)",
        SCALING,
        "ntk_frequencies",
    ),
    Fault(
        "YaRN: the ramp of the paper in place of the code's",
        "nn/rope_scaling.py",
        "(channel - first) / (last - first)",
        "1 - (self.original * frequencies[channel] / (2 * math.pi) - self.slow) / (self.fast - self.slow)",
        SCALING,
        "yarn_frequencies or printed_and_coded",
    ),
]


each_fault = pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.name, marks=needs_kernel if fault.kernel else ()) for fault in FAULTS]
)


@each_fault
def test_the_fault_applies(fault: Fault) -> None:
    seed(fault)


@pytest.mark.slow
@each_fault
def test_a_fault_is_caught(fault: Fault) -> None:
    is_caught(fault)

"""Plans of large runs: FLOPs against torch's counter, state against AdamW on the meta device, arithmetic, refusals."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from keysift.cli.main import _main, parse
from keysift.cli.verbs.train import estimate_rows
from keysift.cli.verbs.train import run as run_train
from keysift.data.batches import Batch
from keysift.kernels.attend import force_backend
from keysift.models.architecture import Arch, MultiscreenArch, TransformerArch
from keysift.models.losses import batch_loss
from keysift.models.presets import PRESETS, VOCABULARY
from keysift.models.registry import build, build_meta, configure
from keysift.train.config import TrainConfig
from keysift.train.footprint import Footprint, Saved, measure_footprint
from keysift.train.plan import HARDWARE, PAPER, Sizes, communication_bytes, memory_parts, plan, sizes_of
from keysift.train.preflight import flops_per_token
from tests.refusals import refuses

MODELS: dict[str, Arch] = {
    "multiscreen": MultiscreenArch(depth=2, tiles=4, width=48),
    "transformer": TransformerArch(depth=2, heads=2, width=48),
    "differential_v2": TransformerArch(depth=2, heads=2, width=48, mechanism="differential_v2"),
}
SMALL = Footprint(layer=Saved(100.0, 7.0), rest=Saved(10.0, 3.0), layer_input=5.0)
SIZES = Sizes(parameters=1000, layer_parameters=300, depth=3, vocab_size=11, micro_tokens=20, accumulation=2, ema=True)


@pytest.mark.parametrize("arch", MODELS)
def test_flops_are_within_2_percent_of_the_counter_of_torch(arch: str) -> None:
    """The dense definition multiplies a query with all T keys, as many as it sees on average in 2 T - 1 tokens."""
    length = 64
    model = build(configure(MODELS[arch], vocab_size=50, context=length))
    tokens = torch.zeros(1, length, dtype=torch.long)
    with force_backend("dense"), FlopCounterMode(display=False) as counter:
        batch_loss(model, Batch(inputs=tokens, targets=tokens, rows=(0,))).loss.backward()
    counted = counter.get_total_flops() / length
    assert flops_per_token(model, 2 * length - 1) == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("name", ["transformer-353m", "multiscreen-psi48", "multiscreen-psi64"])
def test_weights_gradients_and_moments_are_those_on_the_meta_device(name: str) -> None:
    config = TrainConfig(model=PRESETS.find(name).arch, device="h100", **PAPER)
    model = build_meta(configure(config.model, vocab_size=VOCABULARY, context=config.context))
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    optimizer.step()
    moments = [moment for state in optimizer.state.values() for moment in state.values() if moment.ndim]
    parts = memory_parts(sizes_of(config, VOCABULARY, 64), SMALL, "ddp", 64, recompute=False)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert (parts["weights"], parts["gradients"]) == (weights, weights)
    assert parts["moments"] == pytest.approx(sum(moment.nbytes for moment in moments), rel=1e-4)  # fp32 of scalars


def test_memory_and_communication_by_hand() -> None:
    ddp = memory_parts(SIZES, SMALL, "ddp", 4, recompute=False)
    activations = 20 * (3 * 100 + 10 + 12 * 11) + 3 * 7 + 3
    assert ddp == {
        "weights": 4000,
        "moments": 8000,
        "EMA": 4000,
        "gradients": 4000,
        "gradient buckets": 4000,
        "activations": activations,
    }
    fsdp2 = memory_parts(SIZES, SMALL, "fsdp2", 4, recompute=True)
    assert fsdp2 == {
        "weights": 1000,
        "moments": 2000,
        "EMA": 1000,
        "gradients": 4000,
        "gathered layers": 4 * (100 + 600),
        "activations": 20 * (100 + 2 * 5 + 10 + 12 * 11) + 7 + 3,
    }
    single = replace(SIZES, accumulation=1, ema=False)
    assert "gradients" not in memory_parts(single, SMALL, "none", 1, recompute=False), "activations are larger"
    assert communication_bytes(SIZES, "ddp", 4) == 2 * 3000
    assert communication_bytes(SIZES, "fsdp2", 4) == 5 * 3000


@cache
def rows(*flags: str) -> dict[str, str]:
    sizes = ("--psi", "3", "--dry-run", "--world", "16", "--device", "h100")
    return estimate_rows(parse(["train", *sizes, *flags]))


def test_a_plan_has_the_defaults_of_the_paper_and_follows_flags() -> None:
    table = rows()
    assert f"{2**38:,} tokens" in table["time"]
    assert table["step"] == "4,194,304 tokens: 8 x 32,768 per device"
    assert "vocabulary of 50,257" in table["model"]
    assert {f"memory, {s}{r}" for s in ("ddp", "fsdp2") for r in ("", ", recompute")} <= set(table)
    halved = rows("--mfu", "0.2", "--micro-tokens", "16384")
    days, halved_days = (float(text["time"].split()[0]) for text in (table, halved))
    assert halved_days == pytest.approx(2 * days, abs=0.15)
    assert halved["step"] == "4,194,304 tokens: 16 x 16,384 per device"
    assert "450.0 GB/s in a node" in rows("--world", "8")["communication, ddp"]


def test_footprint_counts_a_layer_of_the_torch_backends() -> None:
    """A wider model keeps more; recomputation keeps the inputs of its layers; GPUs do not run the fused CPU kernels."""
    narrow, wide = (
        measure_footprint(MultiscreenArch(depth=9, tiles=2, width=width), compiled=False) for width in (8, 64)
    )
    assert narrow.layer.per_token < wide.layer.per_token
    assert wide.layer_input == 4 * 64
    compiled = measure_footprint(MultiscreenArch(depth=9, tiles=2, width=64), compiled=True)
    assert compiled.layer.per_token < wide.layer.per_token
    assert wide.activations(8, 9, 50, recompute=True) < wide.activations(8, 9, 50, recompute=False)


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(model=MODELS["multiscreen"], **PAPER)
    with refuses("a plan needs --device a100, h100, b200, got auto"):
        plan(config, world=64, mfu=0.4, vocab_size=50)
    for world, mfu in ((0, 0.4), (64, 0.0), (64, 1.5)):
        with refuses("at least one device and an MFU in"):
            plan(replace(config, device="h100"), world=world, mfu=mfu, vocab_size=50)
    flags = ["train", "--psi", "3", "--world", "64", "--device", "h100", "--out", "run"]
    with refuses("--world plans a new run on a cluster; add --dry-run"):
        run_train(parse(flags))
    assert _main(flags) == 2
    assert "add --dry-run and drop --resume" in capsys.readouterr().err
    assert set(HARDWARE) == {"a100", "h100", "b200"}

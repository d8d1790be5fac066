"""What a run would need on a cluster: memory per device, communication, time, checkpoints. Nothing is trained.

P parameters, N devices. State is fp32: weights 4P bytes, gradients 4P, the moments of AdamW 8P, the EMA 4P. ddp keeps
all of it on every device, and a second copy of the gradients in its buckets. fsdp2 shards it, and gathers the layers
that are in use. Times assume a stated MFU, and that communication does not overlap with computation.
"""

from dataclasses import dataclass
from typing import Any

import torch

from keysift.core.errors import ConfigError
from keysift.core.number import data_size
from keysift.models.architecture import arch_name
from keysift.models.language_model import count_parameters
from keysift.models.registry import build_meta, configure
from keysift.train.config import TrainConfig
from keysift.train.distributed import World, accumulation_steps
from keysift.train.footprint import Footprint, measure_footprint
from keysift.train.preflight import flops_per_token

FLOAT = 4
USABLE = 0.9  # of the memory; the rest is fragmentation, the driver and nccl
STRATEGIES = ("ddp", "fsdp2")


@dataclass(frozen=True)
class Hardware:
    """Data-sheet figures of a device: memory, dense bf16 FLOP/s, and bytes/s to its neighbours and to other nodes."""

    name: str
    memory: float
    peak_flops: float
    per_node: int
    node_bandwidth: float
    network_bandwidth: float


# Peak without sparsity; bandwidth in one direction: NVLink inside a node, one network card per device between nodes.
HARDWARE = {
    hardware.name: hardware
    for hardware in (
        Hardware("a100", 80e9, 312e12, 8, 300e9, 25e9),
        Hardware("h100", 80e9, 989e12, 8, 450e9, 50e9),
        Hardware("b200", 180e9, 2250e12, 8, 900e9, 50e9),
    )
}


# The paper's training (arXiv:2604.01178v3, section 4): 2^38 tokens in steps of 2^22; recipes/paper.toml.
PAPER: dict[str, Any] = {
    "context": 4096,
    "batch_tokens": 2**22,
    "micro_tokens": 2**15,
    "steps": 2**16,
    "warmup": 2**12,
    "save_every": 1024,
    "keep_every": 8192,
}


@dataclass(frozen=True)
class Sizes:
    """Sizes on which memory and communication depend."""

    parameters: int
    layer_parameters: int
    depth: int
    vocab_size: int
    micro_tokens: int
    accumulation: int
    ema: bool

    @property
    def root_parameters(self) -> int:
        """Parameters outside the layers: embedding and readout."""
        return self.parameters - self.depth * self.layer_parameters


def sizes_of(config: TrainConfig, vocab_size: int, world: int) -> Sizes:
    """Sizes of a run on `world` devices, counted on the meta device."""
    model = build_meta(configure(config.model, vocab_size=vocab_size, context=config.context))
    accumulation = accumulation_steps(config, World(0, world, torch.device("cpu")))
    return Sizes(
        parameters=count_parameters(model),
        layer_parameters=sum(parameter.numel() for parameter in model.layers[0].parameters()),
        depth=config.model.depth,
        vocab_size=vocab_size,
        micro_tokens=config.batch_tokens // world // accumulation,
        accumulation=accumulation,
        ema=bool(config.ema),
    )


def memory_parts(sizes: Sizes, footprint: Footprint, strategy: str, world: int, *, recompute: bool) -> dict[str, float]:
    """Bytes per device by purpose at the peak of a step, which is the start of its last backward pass.

    With a single backward pass there are no gradients yet: they replace the activations, and the larger counts.
    """
    full = FLOAT * sizes.parameters
    sharded = world if strategy == "fsdp2" else 1
    activations = footprint.activations(sizes.micro_tokens, sizes.depth, sizes.vocab_size, recompute=recompute)
    # Until the last accumulation step gradients are not synchronized, so fsdp2 keeps them unsharded.
    gradients = full if sizes.accumulation > 1 else max(0.0, full / sharded - activations)
    gathered = FLOAT * (sizes.root_parameters + 2 * sizes.layer_parameters)
    parts = {
        "weights": full / sharded,
        "moments": 2 * full / sharded,
        "EMA": full / sharded if sizes.ema else 0.0,
        "gradients": gradients,
        "gradient buckets": full if strategy == "ddp" and world > 1 else 0.0,
        "gathered layers": gathered if strategy == "fsdp2" else 0.0,
        "activations": activations,
    }
    return {name: size for name, size in parts.items() if size}


def communication_bytes(sizes: Sizes, strategy: str, world: int) -> float:
    """Bytes that a device sends per step: all-reduced gradients, or gathered weights and reduce-scattered gradients."""
    ring = (world - 1) / world * FLOAT * sizes.parameters
    # fsdp2 gathers the weights for the forward and the backward pass of every accumulation step.
    return 2 * ring if strategy == "ddp" else (2 * sizes.accumulation + 1) * ring


def plan(config: TrainConfig, *, world: int, mfu: float, vocab_size: int) -> dict[str, str]:
    """Rows of a table: what training with this config would take on `world` devices of the type `config.device`."""
    if config.device not in HARDWARE:
        raise ConfigError(f"a plan needs --device {', '.join(HARDWARE)}, got {config.device}")
    if world < 1 or not 0 < mfu <= 1:
        raise ConfigError(f"a plan needs at least one device and an MFU in (0, 1], got {world} and {mfu:g}")
    hardware = HARDWARE[config.device]
    sizes = sizes_of(config, vocab_size, world)
    footprint = measure_footprint(config.model, compiled=False)
    model = build_meta(configure(config.model, vocab_size=vocab_size, context=config.context))
    flops = flops_per_token(model, config.context)
    speed = world * hardware.peak_flops * mfu / flops
    step_seconds = config.batch_tokens / speed
    per_token = footprint.activations(1, sizes.depth, vocab_size, recompute=False)
    rows = {
        "model": f"{arch_name(config.model)}, {sizes.depth} layers, width {config.model.width}, "
        f"{sizes.parameters:,} parameters with a vocabulary of {vocab_size:,}",
        "devices": f"{world} x {hardware.name}, {data_size(hardware.memory)} each",
        "step": f"{config.batch_tokens:,} tokens: {sizes.accumulation} x {sizes.micro_tokens:,} per device",
        "FLOPs per token": f"{flops:.4g}, forward and backward, including the mechanism",
        "bytes per token": f"{data_size(per_token)} of activations, {2 if vocab_size <= 2**16 else 4} in the corpus",
    }
    for strategy in STRATEGIES:
        rows |= _memory_rows(sizes, footprint, strategy, world, hardware)
    for strategy in STRATEGIES:
        rows[f"communication, {strategy}"] = _communication(sizes, strategy, world, hardware, step_seconds)
    rows["speed"] = f"{speed:,.0f} tokens/s at an MFU of {mfu:.0%}, {step_seconds:.3g} s per step"
    if config.steps is not None:
        tokens = config.steps * config.batch_tokens
        hours = tokens / speed / 3600
        rows["time"] = f"{hours / 24:,.1f} days, {hours * world:,.0f} device-hours for {tokens:,} tokens"
    weights, state = FLOAT * sizes.parameters, (2 + sizes.ema) * FLOAT * sizes.parameters
    minutes = config.save_every * step_seconds / 60
    rows["checkpoint"] = (
        f"{data_size(weights)} of weights and {data_size(state)} of training state, "
        f"every {config.save_every:,} steps: {minutes:,.0f} minutes"
    )
    return rows


def _memory_rows(sizes: Sizes, footprint: Footprint, strategy: str, world: int, hardware: Hardware) -> dict[str, str]:
    rows = {}
    for recompute in (False, True):
        parts = memory_parts(sizes, footprint, strategy, world, recompute=recompute)
        total = sum(parts.values())
        fits = "fits" if total < USABLE * hardware.memory else "does not fit"
        listed = ", ".join(f"{name} {data_size(size)}" for name, size in parts.items())
        rows[f"memory, {strategy}{', recompute' if recompute else ''}"] = f"{data_size(total)}, {fits}: {listed}"
    return rows


def _communication(sizes: Sizes, strategy: str, world: int, hardware: Hardware, step_seconds: float) -> str:
    sent = communication_bytes(sizes, strategy, world)
    shares = []
    for name, bandwidth in (("in a node", hardware.node_bandwidth), ("between nodes", hardware.network_bandwidth)):
        if name == "in a node" and world > hardware.per_node:
            continue
        seconds = sent / bandwidth
        share = seconds / (seconds + step_seconds)
        shares.append(f"{share:.1%} of a step at {data_size(bandwidth)}/s {name}")
    return f"{data_size(sent)} per step and device; without overlap {', '.join(shares)}"

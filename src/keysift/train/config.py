"""The config of a training run. Flags, TOML and JSON are generated from its fields.

Fields left at None follow the paper's recipe for the architecture (arXiv:2604.01178v3, section 4): `resolve` fills
them in, and a run directory stores the resolved config.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from keysift.core.config import config, to_dict
from keysift.core.errors import ConfigError
from keysift.models.architecture import DEFAULT_ARCHS, Arch, arch_name
from keysift.runs.layout import saved_step

Strategy = Literal["auto", "none", "ddp", "fsdp2"]
Tracker = Literal["trackio", "wandb", "tensorboard"]


@config
class TrainConfig:
    """Model, data, optimization and duration of a run."""

    model: Arch = DEFAULT_ARCHS["multiscreen"]
    """The model. Its vocabulary size follows from the tokenizer, its training length is `context`."""
    init: str | None = None
    """Start from the weights of this run or saved model. Its sizes, tokenizer and context are the defaults of all other
    flags. With another mechanism, the scalars start at their initial values."""

    data: str = "stdlib"
    """stdlib, recall[:...], abcdigits[:...], mqar[:...], hf:NAME, a file, folder or quoted glob, or a built corpus."""
    tokenizer: str | None = None
    """bytes, bpe:SIZE or a path; bytes by default."""
    val_fraction: float = 0.05
    """Fraction of the documents used for validation."""
    context: int = 256
    """Tokens per sequence."""
    rows: Literal["auto", "stream", "documents"] = "auto"
    """stream cuts the token stream into sequences, documents packs as many whole documents as fit; auto packs abcdigits
    and mqar."""
    isolate: bool = False
    """Do not attend across documents."""

    batch_tokens: int = 1024
    """Tokens per step over all processes; the number of accumulation steps follows from it."""
    micro_tokens: int = 8192
    """Maximum number of tokens per forward pass on a device."""
    steps: int | None = None
    """Number of training steps."""
    minutes: float | None = None
    """Stop a session after this time; a resumed session starts from zero."""
    seed: int = 0
    """Seed of the initial weights and of the order of the data."""

    lr: float | None = None
    """Learning rate after warm-up; the paper's for the architecture by default."""
    schedule: Literal["constant", "cosine", "wsd"] = "constant"
    """Schedule after the warm-up; cosine and wsd (constant, then linear decay) need steps."""
    warmup: int | None = None
    """Steps of linear warm-up; by default a sixteenth of the run, as in the paper, or 50 if only minutes are given."""
    final_lr: float = 0.0
    """Final learning rate of cosine and wsd, as a fraction of lr."""
    decay_share: float = 0.2
    """Fraction of a wsd run in which the learning rate decays."""
    weight_decay: float | None = None
    """Weight decay of matrices; vectors and scalars never decay."""
    clip: float | None = None
    """Maximum gradient norm; 0 disables clipping."""
    beta1: float = 0.9
    beta2: float = 0.95
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, which is then evaluated and saved; 0 disables it."""

    device: str = "auto"
    """auto, cpu, cuda, ..."""
    strategy: Strategy = "auto"
    """Parallelism strategy; auto is ddp under torchrun."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 uses autocast; auto uses bf16 on GPUs that support it."""
    recompute: bool = False
    """Recompute each layer in the backward pass (activation checkpointing): less memory, more time."""
    compile: bool = False
    """Compile the model with torch.compile."""

    save_every: int = 100
    """Steps between checkpoints; each one also validates and samples."""
    keep_last: int = 2
    """Number of newest checkpoints to keep."""
    keep_every: int = 0
    """Also keep every checkpoint whose step is a multiple of this; 0 disables it."""
    keep_best: bool = True
    """Also keep the checkpoint with the lowest validation loss."""
    val_sequences: int = 32
    """Validation sequences per checkpoint."""
    sample_prompt: str | None = None
    """Prompt of the samples; `def ` by default. Recall takes no samples by default."""
    sample_tokens: int = 100
    """Tokens per sample; 0 takes no samples."""
    log_angles: bool = False
    """Also log the norm of the matrices and the angle by which each step rotates them."""
    track: tuple[Tracker, ...] = ()
    """Experiment trackers to send metrics to; each is an optional extra to install."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number, got {value:g}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must lie in 0..2**63 - 1, got {self.seed}")
        _positive(self, "context", "batch_tokens", "micro_tokens", "save_every", "keep_last", "val_sequences")
        _not_negative(self, "sample_tokens", "keep_every", "final_lr", "warmup", "weight_decay", "clip")
        for name in ("steps", "minutes", "lr"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value:g}")
        for name in ("beta1", "beta2", "ema", "val_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name):g}")
        if self.batch_tokens % self.context:
            raise ConfigError(
                f"batch_tokens must be a multiple of context, got {self.batch_tokens} and {self.context}; "
                f"the next is {-(-self.batch_tokens // self.context) * self.context}"
            )
        if not 0 < self.decay_share <= 1:
            raise ConfigError(f"decay_share must lie in (0, 1], got {self.decay_share:g}")
        if self.schedule != "constant" and self.steps is None:
            raise ConfigError(f"the schedule {self.schedule} needs the number of steps; add --steps, or use constant")

    @property
    def arch(self) -> str:
        """Name of the architecture."""
        return arch_name(self.model)

    @property
    def sequences(self) -> int:
        """Sequences per step."""
        return self.batch_tokens // self.context


# Fields that a resumed run may change; each session stores its config. micro_tokens, strategy, device, recompute and
# compile change rounding, so a resumed run is bit-exact only if they stay the same. lr and clip may change so that a
# run that diverged can resume from its last good checkpoint.
CHANGEABLE_ON_RESUME = frozenset(
    {
        *("steps", "minutes", "lr", "clip"),
        *("device", "strategy", "micro_tokens", "recompute", "compile"),
        *("save_every", "keep_last", "keep_every", "keep_best", "val_sequences"),
        *("sample_prompt", "sample_tokens", "track"),
    }
)


def resolve(config: TrainConfig, parameters: int) -> TrainConfig:
    """The config with every None filled in, for a model with this number of parameters."""
    check_duration(config)
    paper = {"lr": 2.0**-4, "weight_decay": 0.0, "clip": 0.0}
    if config.arch == "transformer":
        # Section 4 names rates for 45M, 353M and 1.3B parameters; other sizes use the nearest one by ratio.
        lr = 1e-3 if parameters < 126e6 else 3e-4 if parameters < 677e6 else 2e-4
        paper = {"lr": lr, "weight_decay": 0.1, "clip": 1.0}
    warmup = 50 if config.steps is None else min(4096, config.steps // 16)
    defaults: dict[str, Any] = {**paper, "warmup": warmup}
    return replace(config, **{name: value for name, value in defaults.items() if getattr(config, name) is None})


def check_duration(config: TrainConfig) -> None:
    if config.steps is None and config.minutes is None:
        raise ConfigError("a run needs an end; add --steps or --minutes")


def flatten(config: TrainConfig) -> dict[str, Any]:
    """All fields, including the model's, under the names of the flags: the format of train.json and TOML."""
    settings = to_dict(config)
    return {"arch": config.arch, **settings.pop("model"), **settings}


def resumed(stored: TrainConfig, config: TrainConfig) -> TrainConfig:
    """The config of a resumed run. Refuses to change a field that past steps depend on."""
    before, after = flatten(stored), flatten(config)
    for name in (name for name in before if name not in CHANGEABLE_ON_RESUME):
        if name not in after or before[name] != after[name]:
            raise ConfigError(
                f"a resumed run keeps its {name}: it was {before[name]!r}, got {after.get(name)!r}; "
                f"start a new run with --out, or drop the flag"
            )
    if stored.schedule != "constant" and stored.steps != config.steps:
        raise ConfigError(
            f"the {stored.schedule} schedule was computed for {stored.steps} steps, got {config.steps}; start a new run"
        )
    return config


def check_unfinished(run: Path, config: TrainConfig) -> None:
    """Raise ConfigError if the run already has a checkpoint of its last step."""
    step = saved_step(run)
    if config.steps is not None and step >= config.steps:
        raise ConfigError(
            f"{run} is finished: it is at step {step} of {config.steps}; pass a larger --steps to continue"
        )


def _positive(config: TrainConfig, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(config, name)}")


def _not_negative(config: TrainConfig, *names: str) -> None:
    for name in names:
        if (getattr(config, name) or 0) < 0:
            raise ConfigError(f"{name} must be at least 0, got {getattr(config, name):g}")

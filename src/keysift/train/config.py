"""One frozen config for a run; flags, TOML and JSON all come from its fields.

What is left out follows the paper's recipe for the architecture (arXiv:2604.01178v3, section 4): `resolve` fills it in,
and a run directory keeps the resolved config.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from keysift.core.config import config, to_dict
from keysift.core.errors import ConfigError
from keysift.models.arch import DEFAULTS, Arch, arch_name
from keysift.runs.layout import saved

Strategy = Literal["auto", "none", "ddp", "fsdp2"]
Tracker = Literal["trackio", "wandb", "tensorboard"]


@config
class TrainConfig:
    """What to train, on what, how and for how long."""

    model: Arch = DEFAULTS["multiscreen"]
    """Which model. Its vocabulary follows from the tokenizer, its training length is `context`."""
    init: str | None = None
    """Start from the weights of this run or saved model. Its model, tokenizer and context are kept unless flags say
    otherwise; with another mechanism its scalars start at their initial values."""

    data: str = "stdlib"
    """stdlib, recall[:...], abcdigits[:...], mqar[:...], hf:NAME, a file, folder or quoted glob, or a built corpus."""
    tokenizer: str | None = None
    """bytes, bpe:SIZE or the path of one; bytes if left out."""
    val_fraction: float = 0.05
    """Share of the documents kept for validation."""
    context: int = 256
    """Tokens of a sequence."""
    rows: Literal["auto", "stream", "documents"] = "auto"
    """A sequence is a piece of the stream, or whole documents, as many as fit; auto: whole for abcdigits and mqar."""
    isolate: bool = False
    """Keep the documents of a sequence apart: no attention across them."""

    batch_tokens: int = 1024
    """Tokens of one step over all processes; accumulation follows from it."""
    micro_tokens: int = 8192
    """Tokens a device takes at once, at most."""
    steps: int | None = None
    """When the run is over."""
    minutes: float | None = None
    """Stop after this much time in this session; a resumed session counts anew."""
    seed: int = 0
    """Initial weights and the order of the data."""

    lr: float | None = None
    """Learning rate after warm-up; the paper's for the architecture if left out."""
    schedule: Literal["constant", "cosine", "wsd"] = "constant"
    """What follows the warm-up; cosine and wsd (constant, then linear decay) need steps."""
    warmup: int | None = None
    """Steps of linear warm-up; a sixteenth of the run, as in the paper, and 50 where only minutes are known."""
    final_lr: float = 0.0
    """Where cosine and wsd end, as a share of lr."""
    decay_share: float = 0.2
    """The part of a wsd run that decays."""
    weight_decay: float | None = None
    """Of matrices; vectors and scalars never decay."""
    clip: float | None = None
    """Largest gradient norm; 0 does not clip."""
    beta1: float = 0.9
    beta2: float = 0.95
    ema: float = 0.0
    """Decay of an average of the weights, which is then what is evaluated and saved as the model; 0 keeps none."""

    device: str = "auto"
    """auto, cpu, cuda, ..."""
    strategy: Strategy = "auto"
    """How several processes share the work; auto is ddp under torchrun."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 is autocast; auto takes it on GPUs that have it."""
    recompute: bool = False
    """Recompute each layer in the backward pass: less memory, more time."""
    compile: bool = False
    """Compile the model with torch.compile."""

    save_every: int = 100
    """Steps between checkpoints; each is also validated and sampled."""
    keep_last: int = 2
    """Checkpoints to keep."""
    keep_every: int = 0
    """Also keep each checkpoint whose step is a multiple of this; 0 keeps none."""
    keep_best: bool = True
    """Also keep the checkpoint with the lowest validation loss; --no-keep-best keeps the newest only."""
    val_sequences: int = 32
    """Validation sequences read at a checkpoint."""
    sample_prompt: str | None = None
    """What samples continue; `def ` if left out, and none are taken of recall."""
    sample_tokens: int = 100
    """Length of a sample; 0 takes none."""
    log_turning: bool = False
    """Also write the norm of the matrices, and the angle each step turns them by, into the metrics."""
    track: tuple[Tracker, ...] = ()
    """Also send metrics there; each is an extra to install."""

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
            raise ConfigError(f"{self.schedule} ends with the run, so it needs steps; add --steps, or use constant")

    @property
    def arch(self) -> str:
        """Name of the model's kind."""
        return arch_name(self.model)

    @property
    def sequences(self) -> int:
        """Sequences of one step."""
        return self.batch_tokens // self.context


# What a resumed run may change; each session writes down its config. How the work is cut (micro_tokens, strategy,
# device, recompute, compile) changes rounding, so a resume is exact to the bit only where that stays the same. A lower
# rate or a clip is how a run that diverged resumes from its last good checkpoint.
CHANGEABLE = frozenset(
    {
        *("steps", "minutes", "lr", "clip"),
        *("device", "strategy", "micro_tokens", "recompute", "compile"),
        *("save_every", "keep_last", "keep_every", "keep_best", "val_sequences"),
        *("sample_prompt", "sample_tokens", "track"),
    }
)


def resolve(config: TrainConfig, parameters: int) -> TrainConfig:
    """The same with every blank filled in, for a model of so many parameters."""
    needs_an_end(config)
    paper = {"lr": 2.0**-4, "weight_decay": 0.0, "clip": 0.0}
    if config.arch == "transformer":
        # Section 4 names rates for 45M, 353M and 1.3B parameters; between them the nearer one (in size ratio) is used.
        lr = 1e-3 if parameters < 126e6 else 3e-4 if parameters < 677e6 else 2e-4
        paper = {"lr": lr, "weight_decay": 0.1, "clip": 1.0}
    warmup = 50 if config.steps is None else min(4096, config.steps // 16)
    wanted: dict[str, Any] = {**paper, "warmup": warmup}
    return replace(config, **{name: value for name, value in wanted.items() if getattr(config, name) is None})


def needs_an_end(config: TrainConfig) -> None:
    if config.steps is None and config.minutes is None:
        raise ConfigError("nothing says when the run is over; add --steps or --minutes")


def flatten(config: TrainConfig) -> dict[str, Any]:
    """Every field under the name of its flag, the model's fields among them: what train.json and TOML hold."""
    told = to_dict(config)
    return {"arch": config.arch, **told.pop("model"), **told}


def changed(stored: TrainConfig, asked: TrainConfig) -> TrainConfig:
    """The config of a resumed run; refuses to change what the past steps were made of."""
    before, after = flatten(stored), flatten(asked)
    for name in (name for name in before if name not in CHANGEABLE):
        if name not in after or before[name] != after[name]:
            raise ConfigError(
                f"a resumed run keeps its {name}: it was {before[name]!r}, got {after.get(name)!r}; "
                f"start a new run with --out, or drop the flag"
            )
    if stored.schedule != "constant" and stored.steps != asked.steps:
        raise ConfigError(
            f"the {stored.schedule} schedule was laid out for {stored.steps} steps, got {asked.steps}; start a new run"
        )
    return asked


def refuse_finished(run: Path, config: TrainConfig) -> None:
    made = saved(run)
    if config.steps is not None and made >= config.steps:
        raise ConfigError(
            f"{run} is finished: it has made {made} steps, {config.steps} were asked for; pass more --steps to train on"
        )


def _positive(config: TrainConfig, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(config, name)}")


def _not_negative(config: TrainConfig, *names: str) -> None:
    for name in names:
        if (getattr(config, name) or 0) < 0:
            raise ConfigError(f"{name} must be at least 0, got {getattr(config, name):g}")

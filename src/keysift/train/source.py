"""Sources of training batches: a tokenized text, or a task that generates its rows.

source = open_source(config, world, show=True)
source.training(config, stage).batch(step)        the batch depends only on config, stage and step
"""

import re
from functools import partial
from typing import Protocol

from keysift.core.config import from_dict, to_dict
from keysift.core.errors import ConfigError
from keysift.data.batches import Batch, Batches
from keysift.data.corpus import Corpus
from keysift.data.options import options
from keysift.data.shards import prepare
from keysift.data.tasks import recall
from keysift.data.tasks.recall import FIRST_VALIDATION_ROW, Recall
from keysift.data.tokenizers.base import Tokenizer
from keysift.train.config import TrainConfig
from keysift.train.distributed import World


class Stream(Protocol):
    """Batches by step number.

    sequences         number of sequences per epoch
    tokens            number of tokens, None for an endless task
    bytes_per_token   None if tokens are not pieces of text
    stream_hash       identifies the tokens and their order
    batch             the batch of a step, or one of `parts` equal parts of it (one rank in one accumulation step)
    """

    @property
    def batch_size(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def tokens(self) -> int | None: ...
    @property
    def bytes_per_token(self) -> float | None: ...
    @property
    def stream_hash(self) -> str: ...
    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch: ...


class Source(Protocol):
    """A source of training and validation batches.

    tokenizer   saved with the model
    prompt      default prompt of samples; if None, no samples are generated
    stages      number of stages of the curriculum, 1 without a curriculum
    """

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def stages(self) -> int: ...
    def training(self, config: TrainConfig, stage: int = 0) -> Stream: ...
    def validation(self, config: TrainConfig) -> Stream: ...


_PROMPT_TOKENS = 64  # tokens of the corpus that may be read for the prompt of samples


class TextSource:
    """Batches of a tokenized corpus. Their order depends only on the config."""

    stages = 1

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.tokenizer = corpus.tokenizer  # loaded now: the cache may be deleted before a checkpoint is written

    @property
    def prompt(self) -> str:
        """The first two words of the corpus; "def " for the standard library, which is Python code."""
        if self.corpus.index.source == "stdlib":
            return "def "
        beginning = self.tokenizer.decode(self.corpus.read(0, min(_PROMPT_TOKENS, self.corpus.index.tokens)).tolist())
        words = re.match(r"\s*\S+\s+\S+(?=\s)", beginning)
        return words[0] if words else beginning.split("\n")[0]

    def training(self, config: TrainConfig, stage: int = 0) -> Batches:
        split = self.corpus.split("train", config.val_fraction)
        return self._batches(config)(split, batch_size=config.sequences, seed=config.seed)

    def validation(self, config: TrainConfig) -> Batches:
        batches = partial(self._batches(config), self.corpus.split("val", config.val_fraction), seed=0)
        return batches(batch_size=min(_validation_batch(config), batches(batch_size=1).sequences))

    def _batches(self, config: TrainConfig) -> "partial[Batches]":
        whole_documents = config.rows == "documents" or (config.rows == "auto" and self.corpus.index.generated)
        return partial(Batches, context=config.context, isolate=config.isolate, whole=whole_documents)


class RecallSource:
    """Batches of the recall task, generated when they are read. Training never uses validation rows.

    Validation rows always have all letters, in every stage of the curriculum.
    """

    prompt = None

    def __init__(self, task: Recall) -> None:
        self.task = task
        self.tokenizer = task.tokenizer
        self.stages = task.stages

    @classmethod
    def from_config(cls, config: TrainConfig) -> "RecallSource":
        """Build the task that `config.data` describes. Raises ConfigError for options that have no effect on it."""
        task = options(config.data.partition(":")[2])
        for name, flag in (("length", "--context"), ("seed", "--seed")):
            if name in task:
                raise ConfigError(f"the {name} of recall is set by {flag}; drop {name}={task[name]} from --data")
        without_effect = {  # setting: allowed values
            "tokenizer": (None, config.init),  # with --init, find_origin checks the model's tokenizer
            "val_fraction": (TrainConfig.val_fraction,),
            "rows": ("auto",),
            "isolate": (False,),
        }
        for name, allowed in without_effect.items():
            if getattr(config, name) not in allowed:
                raise ConfigError(f"recall generates its own rows, so {name} has no effect; drop it")
        return cls(from_dict(Recall, {**task, "length": config.context, "seed": config.seed}))

    def training(self, config: TrainConfig, stage: int = 0) -> recall.Batches:
        return recall.Batches(self.task, batch_size=config.sequences, stage=stage)

    def validation(self, config: TrainConfig) -> recall.Batches:
        task = from_dict(Recall, {**to_dict(self.task), "seed": 0})
        return recall.Batches(task, batch_size=_validation_batch(config), first=FIRST_VALIDATION_ROW)


def open_source(config: TrainConfig, world: World, *, show: bool) -> Source:
    """Open the source that `config.data` names. Rank zero tokenizes a text that is not cached."""
    if config.data.partition(":")[0] == "recall":
        return RecallSource.from_config(config)
    world.on_rank_zero(lambda: prepare(config.data, config.tokenizer, show=show))
    return TextSource(prepare(config.data, config.tokenizer, show=False))


def _validation_batch(config: TrainConfig) -> int:
    """Validation sequences per forward pass."""
    return max(1, min(config.micro_tokens // config.context, config.val_sequences))


MASTERED = 0.9  # running accuracy that ends a stage of a curriculum
_MOMENTUM = 0.95  # the running accuracy averages about the last 20 steps


def advance_stage(stage: int, running_accuracy: float, accuracy: float, stages: int) -> tuple[int, float]:
    """Return stage and running accuracy after a step. A new stage starts at accuracy zero.

    Checkpoints store both, so a resumed run changes stage at the same step.
    """
    running_accuracy = _MOMENTUM * running_accuracy + (1 - _MOMENTUM) * accuracy
    mastered = running_accuracy > MASTERED and stage + 1 < stages
    return (stage + 1, 0.0) if mastered else (stage, running_accuracy)

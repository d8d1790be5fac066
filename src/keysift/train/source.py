"""Where the batch of a step comes from: a tokenised text, or a task whose rows are generated.

source = open_source(config, world, show=True)
source.training(config, stage).batch(step)        the same for one config, stage and step, whatever came before
"""

from functools import partial
from typing import Protocol

from keysift.core.config import from_dict, to_dict
from keysift.core.errors import ConfigError
from keysift.data import recall
from keysift.data.batches import Batch, Batches
from keysift.data.corpus import Corpus
from keysift.data.options import options
from keysift.data.recall import HELD_OUT, Recall
from keysift.data.shards import prepare
from keysift.data.tokenizer import Tokenizer
from keysift.train.config import TrainConfig
from keysift.train.distributed import World


class Stream(Protocol):
    """Batches by number.

    sequences         how many there are before they repeat
    tokens            of them, None where they are generated without end
    bytes_per_token   None where tokens are not pieces of text
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
    """
    tokenizer   saved with the model
    prompt      what a sample continues if the config does not say; None takes no sample
    stages      of a curriculum, 1 where there is none
    """

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def stages(self) -> int: ...
    def training(self, config: TrainConfig, stage: int = 0) -> Stream: ...
    def validation(self, config: TrainConfig) -> Stream: ...


class Text:
    """The documents of a corpus, in an order that depends on nothing but the config."""

    prompt = "def "
    stages = 1

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.tokenizer = corpus.tokenizer  # held, because the cache may be gone when a checkpoint is due

    def training(self, config: TrainConfig, stage: int = 0) -> Batches:
        split = self.corpus.split("train", config.val_fraction)
        return self._batches(config)(split, batch_size=config.sequences, seed=config.seed)

    def validation(self, config: TrainConfig) -> Batches:
        held_out = partial(self._batches(config), self.corpus.split("val", config.val_fraction), seed=0)
        return held_out(batch_size=min(_at_once(config), held_out(batch_size=1).sequences))

    def _batches(self, config: TrainConfig) -> "partial[Batches]":
        whole = config.rows == "documents" or (config.rows == "auto" and self.corpus.index.generated)
        return partial(Batches, context=config.context, isolate=config.isolate, whole=whole)


class Questions:
    """Rows of recall, made when they are read. Validation is on rows no run is trained on, with every letter."""

    prompt = None

    def __init__(self, task: Recall) -> None:
        self.task = task
        self.tokenizer = task.tokenizer
        self.stages = task.stages

    @classmethod
    def of(cls, config: TrainConfig) -> "Questions":
        """The task that `config.data` spells; refuses what another setting says or what a task has no use for."""
        told = options(config.data.partition(":")[2])
        for name, flag in (("length", "--context"), ("seed", "--seed")):
            if name in told:
                raise ConfigError(f"the {name} of recall is {flag}; take {name}={told[name]} out of --data")
        unused = {
            "tokenizer": (None, config.init),  # that of the model to start from, which find_origin compares
            "val_fraction": (TrainConfig.val_fraction,),
            "rows": ("auto",),
            "isolate": (False,),
        }
        for name, inert in unused.items():
            if getattr(config, name) not in inert:
                raise ConfigError(f"recall makes its own rows, so {name} changes nothing; leave it out")
        return cls(from_dict(Recall, {**told, "length": config.context, "seed": config.seed}))

    def training(self, config: TrainConfig, stage: int = 0) -> recall.Batches:
        return recall.Batches(self.task, batch_size=config.sequences, stage=stage)

    def validation(self, config: TrainConfig) -> recall.Batches:
        task = from_dict(Recall, {**to_dict(self.task), "seed": 0})
        return recall.Batches(task, batch_size=_at_once(config), first=HELD_OUT)


def open_source(config: TrainConfig, world: World, *, show: bool) -> Source:
    """What `config.data` names; the first process tokenises a text if nobody has yet."""
    if config.data.partition(":")[0] == "recall":
        return Questions.of(config)
    world.first_does(lambda: prepare(config.data, config.tokenizer, show=show))
    return Text(prepare(config.data, config.tokenizer, show=False))


def _at_once(config: TrainConfig) -> int:
    """Validation sequences of one call."""
    return max(1, min(config.micro_tokens // config.context, config.val_sequences))

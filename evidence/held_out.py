"""Held-out documents of a run: the validation part of its corpus, divided as in training."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from keysift.core.errors import DataError
from keysift.data.corpus import Split
from keysift.data.shards import prepare
from keysift.runs.directory import Run
from keysift.train.manifest import read_manifest

Array = npt.NDArray[np.int64]


def validation_split(run_dir: Path) -> Split:
    """Documents that the run was not trained on. The source is read again where it is not cached."""
    config = read_manifest(Run(run_dir)).config
    return prepare(config.data, config.tokenizer, show=False).split("val", config.val_fraction)


def long_documents(run_dir: Path, length: int, most: int) -> list[Array]:
    """Tokens of held-out documents with more than `length` tokens, in the order of the corpus, at most `most`."""
    split = validation_split(run_dir)
    ends = split.ends
    starts = np.concatenate([[0], ends[:-1]])
    chosen = np.flatnonzero(ends - starts > length)[:most]
    if not len(chosen):
        raise DataError(f"{split.name} has no document of more than {length} tokens; choose a shorter training length")
    return [split.read(int(starts[index]), int(ends[index])).astype(np.int64) for index in chosen]


def unigram_entropy(run_dir: Path) -> float:
    """Entropy in nats of the held-out tokens, each counted alone: the loss of a model that only counts."""
    split = validation_split(run_dir)
    counts = np.bincount(split.read(0, split.tokens))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())

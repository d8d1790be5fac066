"""Tokenize in Ray tasks, with results in order. A task that a lost node leaves unfinished is run again by Ray."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from keysift.core.errors import DataError
from keysift.data.tokenizers.base import Ids, Tokenizer


def encode_chunks(ray: Any, tokenizer: Tokenizer, chunks: Iterable[list[str]]) -> Iterator[list[Ids]]:
    """Token ids of every text of every chunk, in order. At most two chunks per core of the cluster are in memory."""
    encode = ray.remote(_encode).options(num_cpus=1, max_retries=-1)
    shared = ray.put(tokenizer)
    limit = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[Any] = deque()
    try:
        for chunk in chunks:
            waiting.append(encode.remote(shared, chunk))
            if len(waiting) > limit:
                yield ray.get(waiting.popleft())
        while waiting:
            yield ray.get(waiting.popleft())
    except ray.exceptions.RayError as error:
        raise DataError(f"tokenizing with {tokenizer.name} on Ray failed: {error}; try --on here") from error
    finally:
        for task in waiting:
            ray.cancel(task, force=True)


def _encode(tokenizer: Tokenizer, chunk: list[str]) -> list[Ids]:
    return [tokenizer.encode_array(text) for text in chunk]

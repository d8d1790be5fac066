"""Small keysift models as subjects."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from keysift.data.tokenizer import Bytes
from keysift.lens.ours import Ours
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.transformer import TransformerConfig
from keysift.nn.tap import edit
from tests.models.checks import opened, shaken

LINE = "the cat sat on the mat, and the dog lay by the door"


def multiscreen() -> Ours:
    config = MultiscreenConfig(vocab_size=257, depth=2, tiles=3, width=16, key_width=4, value_width=4)
    return Ours(opened(config), Bytes(), "tiny multiscreen")


def transformer(mechanism: str | tuple[str, ...] = "softmax") -> Ours:
    config = TransformerConfig(vocab_size=257, depth=2, heads=4, width=32, mechanism=mechanism)
    return Ours(shaken(config), Bytes(), "tiny transformer")


@contextmanager
def planted(subject: Ours) -> Iterator[None]:
    """Layer 0 of a Transformer: head 0 reads the first key, head 1 everything alike, head 2 the token before."""
    sharp = 100.0

    def queries(q_BHTK: Tensor) -> Tensor:
        q = q_BHTK.clone()
        q[:, 0], q[:, 1], q[:, 2] = 0, 0, 0
        q[:, 0, :, 0] = sharp
        q[:, 2, :, :2] = sharp * _circle(torch.arange(q.shape[2]) - 1)
        return q

    def keys(k_BHSK: Tensor) -> Tensor:
        k = k_BHSK.clone()
        k[:, 0], k[:, 2] = 0, 0
        k[:, 0, 0, 0] = sharp
        k[:, 2, :, :2] = sharp * _circle(torch.arange(k.shape[2]))
        return k

    with edit(subject.model, {"layers.0.q": queries, "layers.0.k": keys}):
        yield


def _circle(at: Tensor) -> Tensor:
    angle = at * (2 * math.pi / 128)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)

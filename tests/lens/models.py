"""Small keysift models for the lens."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from keysift.data.tokenizers.bytes import Bytes
from keysift.lens.keysift_model import KeysiftModel
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.transformer import TransformerConfig
from keysift.nn.tap import edit
from tests.models.checks import perturbed_multiscreen, perturbed_transformer

LINE = "the cat sat on the mat, and the dog lay by the door"


def multiscreen() -> KeysiftModel:
    config = MultiscreenConfig(vocab_size=257, depth=2, tiles=3, width=16, key_width=4, value_width=4)
    return KeysiftModel(perturbed_multiscreen(config), Bytes(), "tiny multiscreen")


def transformer(mechanism: str | tuple[str, ...] = "softmax") -> KeysiftModel:
    config = TransformerConfig(vocab_size=257, depth=2, heads=4, width=32, mechanism=mechanism)
    return KeysiftModel(perturbed_transformer(config), Bytes(), "tiny transformer")


@contextmanager
def planted(model: KeysiftModel) -> Iterator[None]:
    """Edit layer 0: head 0 attends to the first key, head 1 to all keys equally, head 2 to the previous token."""
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

    with edit(model.model, {"layers.0.q": queries, "layers.0.k": keys}):
        yield


def _circle(at: Tensor) -> Tensor:
    angle = at * (2 * math.pi / 128)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)

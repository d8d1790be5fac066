"""Attention maps of one text: every head, quantised and compressed. Read and written without torch and numpy.

A map has two parts. The *codes* cover all pairs: each row of a head stores its scores in LEVELS steps between its
smallest and largest score. The *top keys* are exact: for each stored query the scores of its K largest weights in fp32,
and the log of the sum of exp(score) over all other visible keys, so softmax weights and their values after a removal
follow to fp32 precision. A text of more than about 260 tokens per 36 heads is pooled: a code then covers pool x pool
pairs and holds their largest score, and a second array of codes their largest weight.

Arrays (little-endian; H heads in the order of `heads`, G = ceil(tokens / pool), C = G (G + 1) / 2 cells of the lower
triangle row by row, Q stored queries, K keys):

    score_codes   uint8    H C    0: not visible; c: low + (c - 1) step of the row
    score_low     float32  H G
    score_step    float32  H G
    weight_codes  uint8    H C    0: no weight; else 10^((c mod 64 - 63) / 10) of `peak`, negative from 64 on.
                                  Missing if pool is 1 and the weights are softmax
    peak          float32  H      largest weight of a head; with weight_codes
    key_at        uint32   H Q K  positions of the top keys; NO_KEY where a row has fewer
    score_at      float32  H Q K
    weight_at     float32  H Q K  missing if the weights are softmax
    rest          float32  H Q    log of the sum of exp(score - largest stored score) over the other visible keys
    seen          uint32   H Q    number of visible keys
"""

import base64
import sys
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEVELS = 63  # codes 1 to 63
NO_KEY = 2**32 - 1
SOFTMAX, ABSOLUTE, OTHER = "softmax", "absolute", "other"  # how weights react to a removed key
KINDS = {"uint8": "B", "uint32": "I", "float32": "f"}


@dataclass(frozen=True, kw_only=True)
class KeyGroup:
    """Keys of similar direction, as the last query sees them. All numbers but `size` are cosines."""

    size: int
    centre: float  # of the angle between the query and the centre of the group
    reach: float  # of the largest angle between the centre and a key
    bound: float  # no key of the group scores higher
    best: float  # the highest score in the group


@dataclass(frozen=True, kw_only=True)
class MapHead:
    """One head of a map; `threshold`, `window`, `acceptance` and `groups` if its mechanism has them."""

    layer: int
    head: int
    rule: str  # SOFTMAX, ABSOLUTE or OTHER
    mechanism: str
    threshold: float | None = None
    window: float | None = None
    acceptance: float | None = None
    groups: tuple[KeyGroup, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TextMaps:
    text: int  # number of the text in the record
    swap: str | None  # the mechanism that replaced the model's own, if any
    tokens: tuple[str, ...]
    pool: int
    queries: tuple[int, ...]  # stored queries
    keys: int  # K
    heads: tuple[MapHead, ...]
    arrays: Mapping[str, str]  # by name: its type, a colon, and base64 of deflated bytes, grouped by significance

    def read(self, name: str) -> "array[Any]":
        """Numbers of an array, flat."""
        kind, _, text = self.arrays[name].partition(":")
        return unpack(kind, zlib.decompress(base64.b64decode(text)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TextMaps":
        return cls(
            text=data["text"],
            swap=data["swap"],
            tokens=tuple(data["tokens"]),
            pool=data["pool"],
            queries=tuple(data["queries"]),
            keys=data["keys"],
            heads=tuple(_head(head) for head in data["heads"]),
            arrays=data["arrays"],
        )


def _head(data: Mapping[str, Any]) -> MapHead:
    return MapHead(**{**data, "groups": tuple(KeyGroup(**group) for group in data.get("groups", ()))})


def pack(kind: str, content: bytes) -> str:
    """An entry of `arrays`. The first bytes of all numbers are stored before the second ones: they compress better."""
    size = array(KINDS[kind]).itemsize
    planes = b"".join(content[byte::size] for byte in range(size))
    return f"{kind}:{base64.b64encode(zlib.compress(planes, 9)).decode()}"


def unpack(kind: str, planes: bytes) -> "array[Any]":
    """The numbers of an array from its decompressed bytes."""
    numbers = array(KINDS[kind])
    size = numbers.itemsize
    count = len(planes) // size
    content = bytearray(len(planes))
    for byte in range(size):
        content[byte::size] = planes[byte * count : (byte + 1) * count]
    numbers.frombytes(bytes(content))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers

"""A seeded permutation of 0 .. n - 1 that is computed, not stored: a Feistel network that walks back into range.

Halves (L, R) of the number's bits, each round (L, R) -> (R, L xor f(R)): undone by running it backwards, whatever f
is, so it permutes [0, 4^h). A result beyond n - 1 is sent through again until it is below; that permutes [0, n).
"""

import hashlib

import numpy as np
import numpy.typing as npt

_ROUNDS = 6
# splitmix64's multipliers: every bit of the input moves about half the bits of the output.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def permute(numbers: npt.NDArray[np.int64], n: int, key: str) -> npt.NDArray[np.int64]:
    """Where each of `numbers` (all in [0, n)) goes."""
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    digest = hashlib.sha512(key.encode()).digest()
    keys = np.frombuffer(digest, "<u8")[:_ROUNDS]
    moved = _network(numbers.astype(np.uint64), half, keys)
    outside = moved >= n
    while outside.any():
        moved[outside] = _network(moved[outside], half, keys)
        outside = moved >= n
    return moved.astype(np.int64)


def _network(x: npt.NDArray[np.uint64], half: np.uint64, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = x >> half, x & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))

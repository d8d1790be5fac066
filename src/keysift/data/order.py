"""A seeded permutation of 0 .. n - 1, computed without a table by a Feistel network with cycle walking.

The bits of a number are split into halves (L, R). Each round maps (L, R) to (R, L xor f(R)), which is invertible for
any f, so the network permutes [0, 4^h). A result of n or more is mapped again until it is below n, which permutes
[0, n).
"""

import hashlib

import numpy as np
import numpy.typing as npt

_ROUNDS = 6
# Multipliers of splitmix64: every input bit changes about half of the output bits.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def permute(numbers: npt.NDArray[np.int64], n: int, key: str) -> npt.NDArray[np.int64]:
    """The images of `numbers`, all in [0, n), under the permutation of `key`."""
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

"""Cases of the screening benchmark: the compiled kernel, the dense definition, and torch's softmax attention.

Letters: H tiles or heads, T tokens, K key width, V value width.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.mechanisms.screening import SCREENING, WINDOW
from keysift.mechanisms.spec import Site

KEY_WIDTH, VALUE_WIDTH = 16, 64
HEAD_WIDTH = 64
TILES_AT_ONCE = 4  # of the dense definition; gradients of 16 tiles at T = 4096 need more than 10 GB


class ScreeningCase:
    """The kernel on random normal vectors. Windows are the initial ones (2 to 257) unless `window` sets all of them."""

    def __init__(self, *, tokens: int, tiles: int, window: float | None = None, acceptance: float = 0.5) -> None:
        self.tokens, self.tiles, self.acceptance = tokens, tiles, acceptance
        random = torch.Generator().manual_seed(0)
        shapes = [(1, tiles, tokens, width) for width in (KEY_WIDTH, KEY_WIDTH, VALUE_WIDTH, VALUE_WIDTH)]
        q, k, v, self.grad_output = (torch.randn(shape, generator=random) for shape in shapes)
        every = WINDOW.default(Site(heads=tiles)).float() if window is None else torch.full((tiles,), window)
        self.window = "no window" if window == math.inf else f"windows {every.min():.0f} .. {every.max():.0f}"
        self.what = f"screening, {self.window}, r = {acceptance:g}"
        self.setting = f"{tiles} tiles"
        self.leaves = [x.requires_grad_() for x in (q, k, v, every, torch.full((tiles,), acceptance))]
        self._out: Tensor | None = None

    def run(self) -> Tensor:
        return _attend(self.leaves, "screening_cpu")

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.run()

    def record_forward(self) -> Tensor:
        """Run the forward pass that `backward` differentiates."""
        self._out = self.run()
        return self._out

    def backward(self) -> tuple[Tensor, ...]:
        """The backward pass alone, after `record_forward`."""
        assert self._out is not None, "call record_forward first, so that the forward pass is not timed"
        return torch.autograd.grad(self._out, self.leaves, self.grad_output, retain_graph=True)

    def forward_backward(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.run(), self.leaves, self.grad_output)

    @property
    def pairs(self) -> int:
        """Number of query-key pairs inside the windows of all tiles."""
        return sum(_pairs(self.tokens, window) for window in self.leaves[3].tolist())

    @property
    def flops(self) -> int:
        return 2 * (KEY_WIDTH + VALUE_WIDTH) * self.pairs

    @property
    def bytes(self) -> int:
        """Bytes of the inputs and the output of the forward pass."""
        return 4 * self.tiles * self.tokens * (2 * KEY_WIDTH + 2 * VALUE_WIDTH)


def _pairs(tokens: int, window: float) -> int:
    wide = tokens if window >= tokens else math.ceil(window)
    return wide * (wide + 1) // 2 + (tokens - wide) * wide


def _attend(leaves: list[Tensor], backend: str) -> Tensor:
    q, k, v, window, acceptance = leaves
    return attend(SCREENING, q, k, v, scalars={"window": window, "acceptance": acceptance}, backend=backend)


class DenseCase:
    """The dense definition in plain torch on the same inputs, a few tiles at a time to bound memory."""

    name = "dense definition"

    def __init__(self, screening: ScreeningCase) -> None:
        self.screening = screening

    def _parts(self) -> Iterator[tuple[list[Tensor], Tensor]]:
        case = self.screening
        for start in range(0, case.tiles, TILES_AT_ONCE):
            tiles = slice(start, start + TILES_AT_ONCE)
            leaves = [x.detach()[(slice(None), tiles) if x.ndim > 1 else tiles] for x in case.leaves]
            yield [x.requires_grad_() for x in leaves], case.grad_output[:, tiles]

    def forward(self) -> None:
        with torch.no_grad():
            for leaves, _ in self._parts():
                _attend(leaves, "dense")

    def forward_backward(self) -> None:
        for leaves, grad_output in self._parts():
            torch.autograd.grad(_attend(leaves, "dense"), leaves, grad_output)


class SoftmaxCase:
    """Causal softmax attention by torch's scaled_dot_product_attention."""

    name = f"SDPA, heads of width {HEAD_WIDTH}"

    def __init__(self, *, tokens: int, heads: int) -> None:
        random = torch.Generator().manual_seed(0)
        q, k, v, self.grad_output = (torch.randn(1, heads, tokens, HEAD_WIDTH, generator=random) for _ in range(4))
        self.leaves = [x.requires_grad_() for x in (q, k, v)]

    def run(self) -> Tensor:
        q, k, v = self.leaves
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.run()

    def forward_backward(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.run(), self.leaves, self.grad_output)

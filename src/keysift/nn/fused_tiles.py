"""A layer of gated tiles as two matrix products with one operator between them.

    x (W_Q W_K W_V W_G) -> tile operator -> W_O

`nn/tile.py` has the definition, which runs where the operator does not support a call (`explain_tiles` gives the
reason), or where a tap reads a value in between. The tokens are processed in pieces, so that a projection is read while
it is still in the processor's cache, and its memory is used again. With gradients, a piece is some rows of the batch.
Without gradients a long row is cut as well: the keys and values of earlier tokens stay in front of the next piece, as
far as the windows need them. The first call of a cache stores its keys and values; later calls run the definition.

Letters: B batch, T tokens, S keys, D model width, X channels of all projections.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keysift.kernels.attend import Choice
from keysift.kernels.cpu.key_groups import KeyGroups
from keysift.kernels.cpu.linear import linear_into
from keysift.kernels.positions import Positions
from keysift.kernels.scalars import Scalars
from keysift.kernels.tiles import NAME, explain_tiles, make_tile_call, run_tiles
from keysift.kernels.transforms import can_inspect_values
from keysift.mechanisms.spec import Mechanism, Site
from keysift.nn.cache import AttentionContext
from keysift.nn.inference import Search
from keysift.nn.layer_cache import LayerCache
from keysift.nn.projection import is_plain, join_projections, split
from keysift.nn.scalars import MechanismScalars

PIECE = 2048  # tokens of a piece of whole rows
CUT = 512  # tokens of a piece of a long row: the projection of a psi of 8 stays in the second-level cache


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedTiles:
    """The parts of a layer: input projections (q, k, v and, with a gate, g), output projection and scalars."""

    mechanism: Mechanism
    site: Site
    inputs: tuple[nn.Module, ...]
    output: nn.Module
    scalars: MechanismScalars
    s_O: Tensor

    def run(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache | None) -> Tensor | None:
        """The output dx of the layer, or None where no operator supports the call."""
        fills = layer_cache is not None
        if (fills and not _is_first_call(context)) or NAME in self.explain(x_BTD, context).declined:
            return None
        scalars = self.scalars(x_BTD, context.inference)
        scale_H = self.s_O.float().exp()
        past = None if fills else self._past(x_BTD, context.positions, scalars)
        if past is not None:
            return self._long_rows(x_BTD, scalars, scale_H, past, context.inference.search)
        if fills or not can_inspect_values() or x_BTD.shape[0] * x_BTD.shape[1] <= PIECE:
            projected = join_projections(self.inputs, x_BTD.shape[0] * x_BTD.shape[1])(x_BTD)
            if layer_cache is not None:
                self._fill(layer_cache, projected, context)
            one_row = fills and can_inspect_values() and x_BTD.shape[0] == 1 and _counts_on(context.positions)
            groups = _key_groups(context.inference.search, x_BTD) if one_row else None
            return self._output(self._gated(projected, scalars, scale_H, context.positions, groups))
        project = join_projections(self.inputs, x_BTD.shape[0] * x_BTD.shape[1])
        rows = max(1, PIECE // x_BTD.shape[1])
        pieces = [
            self._output(
                self._gated(project(x_PTD), scalars, scale_H, context.positions.select_rows(start, start + rows))
            )
            # split, not slices: the gradient of a slice is as large as the whole, and each would be filled and added
            for start, x_PTD in zip(range(0, x_BTD.shape[0], rows), torch.split(x_BTD, rows), strict=True)
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def explain(self, x_BTD: Tensor, context: AttentionContext) -> Choice:
        """Whether the operator runs the layer on such tokens, and why not."""
        return explain_tiles(self.mechanism, self.site, x_BTD, context.positions)

    def _fill(self, layer_cache: LayerCache, projected_BTX: Tensor, context: AttentionContext) -> None:
        """Store the keys and values in an empty cache."""
        assert context.update is not None
        heads, keys = self.site.heads, self.site.heads * self.site.key_width
        values = heads * self.site.value_width
        new = {
            "k": split(projected_BTX[..., keys : 2 * keys], heads),
            "v": split(projected_BTX[..., 2 * keys : 2 * keys + values], heads),
        }
        layer_cache.check_finite(new)
        layer_cache.extend(new, context.update)

    def _output(self, gated_BTY: Tensor) -> Tensor:
        return join_projections([self.output], gated_BTY.shape[0] * gated_BTY.shape[1])(gated_BTY)

    def _gated(
        self,
        projected_BSX: Tensor,
        scalars: Scalars,
        scale_H: Tensor,
        positions: Positions,
        groups: KeyGroups | None = None,
    ) -> Tensor:
        """Input of the output projection."""
        call = make_tile_call(
            self.mechanism,
            projected_BSX,
            self.site,
            gated=len(self.inputs) == 4,
            scalars=scalars,
            scale_H=scale_H,
            positions=positions,
            groups=None if groups is None else groups.handle,
        )
        return run_tiles(call)

    def _past(self, x_BTD: Tensor, positions: Positions, scalars: Scalars) -> int | None:
        """Number of earlier tokens that a piece of a long row needs, or None where rows are not cut."""
        tokens = x_BTD.shape[1]
        # A compiled graph holds for every length, so it must not depend on this one.
        if not can_inspect_values() or tokens < 2 * CUT or torch.is_grad_enabled():
            return None
        plain = all(map(is_plain, (*self.inputs, self.output))) and not torch.is_autocast_enabled("cpu")
        if not plain or x_BTD.device.type != "cpu" or not _counts_on(positions):
            return None
        longest = torch.as_tensor(scalars.get("effective_window", math.inf)).max()
        return int(min(float(tokens), math.ceil(longest) if longest.isfinite() else tokens))

    def _long_rows(self, x_BTD: Tensor, scalars: Scalars, scale_H: Tensor, past: int, search: Search) -> Tensor:
        """Row by row and piece by piece. `work` holds the projections of `past` tokens and of a piece."""
        tokens = x_BTD.shape[1]
        weight_XD = torch.cat([module.weight for module in self.inputs])  # type: ignore[misc]
        output_DY: Tensor = self.output.weight  # type: ignore[assignment]
        step = max(CUT, past)  # so that the kept tokens are copied to a place they do not overlap
        keeps_all = past + step >= tokens
        if keeps_all:
            step = CUT
        work_SX = x_BTD.new_empty(tokens if keeps_all else past + step, len(weight_XD))
        keys_and_values = slice(self.site.heads * self.site.key_width, None)
        dx_BTD = torch.empty_like(x_BTD)
        for row, dx_row in zip(x_BTD, dx_BTD, strict=True):
            held = 0  # earlier tokens in `work`
            groups = _key_groups(search, x_BTD) if keeps_all else None
            for start in range(0, tokens, step):
                piece = row[start : start + step]
                end = held + len(piece)
                linear_into(piece, weight_XD, work_SX[held:end])
                first = max(0, held - past)
                positions = Positions.counted(len(piece), end - first)
                gated = self._gated(work_SX[None, first:end], scalars, scale_H, positions, groups)
                linear_into(gated[0], output_DY, dx_row[start : start + step])
                held = end
                if not keeps_all:
                    held = min(past, end)
                    work_SX[:held, keys_and_values] = work_SX[end - held : end, keys_and_values]
        return dx_BTD


def _counts_on(positions: Positions) -> bool:
    """Whether every row is one text from its first token on."""
    return positions.consecutive and positions.offset == 0


def _key_groups(search: Search, x_BTD: Tensor) -> KeyGroups | None:
    """Groups for the keys of a row, or None where they are scanned. The kernel has no sketches and no moments here."""
    if search not in ("auto", "groups") or x_BTD.shape[1] < 2 * CUT:
        return None
    return KeyGroups(always=search == "groups")


def _is_first_call(context: AttentionContext) -> bool:
    """Whether the call fills an empty cache, so that its keys are the keys of its own tokens."""
    return context.update is not None and not any(context.update.before) and context.positions.queries > 1

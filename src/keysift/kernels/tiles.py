"""`run_tiles`, the entry point to the operator for gated tiles, and `explain_tiles`, which reports the choice.

It is the counterpart of `attend` for whole tiles. Where the operator does not support a call, the layer calls `attend`
and applies the gate in plain torch. Both give the same numbers, up to rounding.
"""

from torch import Tensor

from keysift.kernels import attend
from keysift.kernels.attend import Choice
from keysift.kernels.cpu import library
from keysift.kernels.cpu import tile as cpu_tile
from keysift.kernels.positions import Positions
from keysift.kernels.scalars import AlignedScalars, Scalars, accumulation_dtype, align_scalars
from keysift.kernels.tile_call import TileCall
from keysift.mechanisms.spec import Mechanism, Site

NAME, SEPARATE = "tile_cpu", "attend"
_BACKEND = "screening_cpu"  # force_backend names it to allow this operator


def make_tile_call(
    mechanism: Mechanism,
    projected_BSX: Tensor,
    site: Site,
    *,
    gated: bool,
    scalars: Scalars,
    scale_H: Tensor,
    positions: Positions,
    groups: int | None = None,
) -> TileCall:
    """Check the scalars and the positions, and return the arguments of a layer's tiles."""
    b, s, _ = projected_BSX.shape
    sizes = {"B": b, "H": site.heads, "G": site.heads, "T": positions.queries, "S": s, "V": site.value_width}
    positions.check(sizes)
    if not isinstance(scalars, AlignedScalars):
        dtype = accumulation_dtype(projected_BSX)
        scalars = align_scalars(mechanism, scalars, site, sizes, dtype=dtype, device=projected_BSX.device)
    return TileCall(
        mechanism=mechanism,
        projected=projected_BSX,
        heads=site.heads,
        key_width=site.key_width,
        gated=gated,
        scalars=scalars,
        scale=scale_H,
        positions=positions,
        groups=groups,
    )


def explain_tiles(mechanism: Mechanism, site: Site, like: Tensor, positions: Positions) -> Choice:
    """Report whether one operator runs such tiles ("tile_cpu") or `attend` ("attend"), and why. Computes nothing.

    like  a tensor with the batch size, device and dtype of the projections
    """
    reason = _declines(mechanism, site, like, positions)
    return Choice(NAME, {}) if reason is None else Choice(SEPARATE, {NAME: reason})


def run_tiles(call: TileCall) -> Tensor:
    """The output of the tiles, B T (H V), for a call that `explain_tiles` gives to the operator."""
    return cpu_tile.run(call)


def _declines(mechanism: Mechanism, site: Site, like: Tensor, positions: Positions) -> str | None:
    forced = attend.forced_backend()
    if forced is not None and forced != _BACKEND:
        return f"the backend {forced} was asked for"
    unavailable = library.unavailable()
    if unavailable is not None:
        return unavailable.text
    if like.shape[0] == 0:
        return "the batch is empty"
    return cpu_tile.declines(mechanism, site.key_width, like, positions)

"""The scalars a mechanism asks for, made from its spec: parameters, constants, or projections of the token stream.

    learned, per layer, head or channel   a parameter in raw form, linked when used
    not learned                           a constant of the place where the mechanism stands
    per query or key (projected)          a bias-free projection of the layer's input, linked when used

Letters: B batch, H heads, G key heads, T tokens, D model width, V value width.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from keysift.kernels.call import Aligned, align, carrier, may_look
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site
from keysift.nn.inference import Inference
from keysift.nn.projection import projection, split


class Scalars(nn.Module):
    """Values for one mechanism at one site. `symbols` names the parameters after the paper's letters."""

    def __init__(
        self,
        mechanism: Mechanism,
        site: Site,
        *,
        width: int,
        key_heads: int,
        std: float,
        generator: torch.Generator,
        symbols: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.site = site
        self.sizes = {"H": site.heads, "G": key_heads, "V": site.value_width}
        self._projects = any(scalar.per.projected for scalar in mechanism.scalars)
        self._kept: tuple[list[Tensor], tuple[torch.dtype, Inference], Aligned] | None = None
        names = symbols or {}
        self.symbols = {scalar.name: names.get(scalar.name, f"raw_{scalar.name}") for scalar in mechanism.scalars}
        for scalar in mechanism.scalars:
            symbol = self.symbols[scalar.name]
            if scalar.per.projected:
                self.add_module(symbol, projection(width, self._channels(scalar.per), std, generator))
            elif scalar.learned:
                self.register_parameter(symbol, nn.Parameter(self._raw(scalar, generator)))

    def _channels(self, per: Per) -> int:
        channels = 1
        for axis in per.value:
            channels *= self.sizes.get(axis, 1)
        return channels

    def _raw(self, scalar: Scalar, generator: torch.Generator) -> Tensor:
        raw = scalar.init(self.site, generator).to(torch.get_default_dtype())
        return raw.expand([self.sizes[axis] for axis in scalar.per.value]).clone() if raw.ndim == 0 else raw

    def stored(self, inference: Inference) -> dict[str, Tensor]:
        """Linked values of everything that does not depend on the tokens."""
        values: dict[str, Tensor] = {}
        for scalar in self.mechanism.scalars:
            if scalar.per.projected or scalar.follows is not None:
                continue
            if scalar.learned:
                raw = getattr(self, self.symbols[scalar.name])
                values[scalar.name] = scalar.link(raw.to(carrier(raw)), self.site)
            else:
                # Made anew rather than kept in a buffer, which .bfloat16() would round.
                values[scalar.name] = scalar.default(self.site)
        trained = inference.expand_windows
        if trained is not False and self.looks_back:
            window = values[self._window]
            values[self._band] = torch.where(window > trained, torch.inf, window)
        return values

    def forward(self, x_BTD: Tensor, inference: Inference) -> dict[str, Tensor]:
        if not self._projects and not torch.is_grad_enabled() and x_BTD.device.type == "cpu" and may_look():
            return self._unchanged(carrier(x_BTD), inference)
        values = self.stored(inference)
        for scalar in self.mechanism.scalars:
            if scalar.per.projected:
                raw_BTX = getattr(self, self.symbols[scalar.name])(x_BTD)
                raw = split(raw_BTX, self.sizes[scalar.per.value[1]])
                raw = raw if scalar.per.value.endswith("V") else raw[..., 0]
                values[scalar.name] = scalar.link(raw.to(carrier(raw)), self.site)
        return values

    def _unchanged(self, carry: torch.dtype, inference: Inference) -> Aligned:
        """Linked, checked and aligned once for as long as the parameters hold the same numbers: decoding asks for the
        same few scalars at every token. Numbers are compared, because `.data` changes them behind every counter."""
        raw = [parameter.detach() for parameter in self.parameters(recurse=False)]
        if self._kept is not None:
            numbers, choices, values = self._kept
            if choices == (carry, inference) and all(map(torch.equal, numbers, raw)):
                return values
        values = align(
            self.mechanism, self.stored(inference), self.site, self.sizes, carry=carry, device=torch.device("cpu")
        )
        self._kept = ([x.clone() for x in raw], (carry, inference), values)
        return values

    @property
    def looks_back(self) -> bool:
        """Whether the mechanism has a band that follows a learned window."""
        band = self.mechanism.band
        return band is not None and self.mechanism.scalar(band).follows is not None

    @property
    def _band(self) -> str:
        assert self.mechanism.band is not None
        return self.mechanism.band

    @property
    def _window(self) -> str:
        follows = self.mechanism.scalar(self._band).follows
        assert follows is not None
        return follows

    def reach(self, inference: Inference) -> list[float]:
        """How many positions back each key head must be remembered; infinite unless a refused key is inert."""
        if not self.looks_back or Promise.REFUSED_INERT not in self.mechanism.holds:
            return [float("inf")] * self.sizes["G"]
        values = self.stored(inference)
        reach_H = values.get(self._band, values[self._window]).detach().expand(self.sizes["H"])
        return reach_H.view(self.sizes["G"], -1).amax(1).tolist()

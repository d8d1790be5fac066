"""Values of a mechanism's scalars: parameters, constants, or projections of the layer's input.

    learned, per layer, head or channel   a raw parameter; the scalar's link function maps it to the value
    not learned                           a constant of the site
    per query or key (projected)          a projection of the layer's input, with a bias if the scalar has one, then the
                                          link function

Letters: B batch, H heads, G key heads, T tokens, D model width, V value width.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from keysift.kernels.scalars import AlignedScalars, accumulation_dtype, align_scalars
from keysift.kernels.transforms import can_inspect_values
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site
from keysift.nn.inference import Inference
from keysift.nn.position import EVERY_KEY, LayerPosition
from keysift.nn.projection import projection, split


class MechanismScalars(nn.Module):
    """Scalars of one mechanism at one site. `symbols` maps scalar names to parameter names of the paper."""

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
        position: LayerPosition = EVERY_KEY,
    ) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.site = site
        self.position = position
        self.sizes = {"H": site.heads, "G": key_heads, "V": site.value_width}
        self._has_projections = any(scalar.per.projected for scalar in mechanism.scalars)
        self._cached: tuple[list[Tensor], tuple[torch.dtype, Inference], AlignedScalars] | None = None
        names = symbols or {}
        self.symbols = {scalar.name: names.get(scalar.name, f"raw_{scalar.name}") for scalar in mechanism.scalars}
        for scalar in mechanism.scalars:
            symbol = self.symbols[scalar.name]
            if scalar.per.projected:
                self.add_module(symbol, self._projection(scalar, width, std, generator))
            elif scalar.learned:
                self.register_parameter(symbol, nn.Parameter(self._raw(scalar, generator)))

    def _projection(self, scalar: Scalar, width: int, std: float, generator: torch.Generator) -> nn.Linear:
        linear = projection(width, math.prod(self._shape(scalar.per)), std, generator)
        if scalar.bias:
            linear.bias = nn.Parameter(self._raw(scalar, generator).flatten())
        return linear

    def _shape(self, per: Per) -> list[int]:
        """Sizes of a scalar, apart from batch and tokens."""
        return [self.sizes[axis] for axis in per.value if axis in self.sizes]

    def _raw(self, scalar: Scalar, generator: torch.Generator) -> Tensor:
        if torch.get_default_device().type == "meta":
            # Computed on the CPU: arithmetic on the meta device imports sympy and a compiler.
            with torch.device("cpu"):
                return self._raw(scalar, torch.Generator()).to("meta")
        raw = scalar.init(self.site, generator).to(torch.get_default_dtype())
        # A learned scalar may be computed from more numbers than it has values: differential attention's lam.
        return raw.expand(self._shape(scalar.per)).clone() if raw.ndim == 0 or scalar.bias else raw

    def linked(self, inference: Inference) -> dict[str, Tensor]:
        """Values (link function applied) of all scalars that do not depend on the input."""
        values: dict[str, Tensor] = {}
        for scalar in self.mechanism.scalars:
            if scalar.per.projected or scalar.follows is not None:
                continue
            if scalar.learned:
                raw = getattr(self, self.symbols[scalar.name])
                values[scalar.name] = scalar.link(raw.to(accumulation_dtype(raw)), self.site)
            else:
                # Computed here rather than stored in a buffer, which .bfloat16() would round.
                values[scalar.name] = scalar.default(self.site)
        training_length = inference.expand_windows
        if training_length is not False and self.has_learned_window:
            window = values[self._window()]
            values[self._effective_window()] = torch.where(window > training_length, torch.inf, window)
        return values

    def forward(self, x_BTD: Tensor, inference: Inference) -> dict[str, Tensor]:
        """Values of all scalars by name."""
        if (
            not self._has_projections
            and not torch.is_grad_enabled()
            and x_BTD.device.type == "cpu"
            and can_inspect_values()
        ):
            return self._cached_values(accumulation_dtype(x_BTD), inference)
        values = self.linked(inference)
        for scalar in self.mechanism.scalars:
            if scalar.per.projected:
                raw_BTX = getattr(self, self.symbols[scalar.name])(x_BTD)
                raw = split(raw_BTX, self.sizes[scalar.per.value[1]])
                raw = raw if scalar.per.value.endswith("V") else raw[..., 0]
                values[scalar.name] = scalar.link(raw.to(accumulation_dtype(raw)), self.site)
        return values

    def _cached_values(self, dtype: torch.dtype, inference: Inference) -> AlignedScalars:
        """Values of all scalars, checked and aligned; computed again only when a parameter changes.

        Decoding needs the same few scalars for every token. Changes are detected by comparing values, because writes
        through `.data` do not change the version counter.
        """
        raw = [parameter.detach() for parameter in self.parameters(recurse=False)]
        if self._cached is not None:
            raw_before, options, values = self._cached
            if options == (dtype, inference) and all(map(torch.equal, raw_before, raw)):
                return values
        values = self.aligned(inference, dtype)
        self._cached = ([x.clone() for x in raw], (dtype, inference), values)
        return values

    def aligned(self, inference: Inference, dtype: torch.dtype = torch.float32) -> AlignedScalars:
        """Values of all scalars that do not depend on the input, checked and aligned, on the CPU."""
        return align_scalars(
            self.mechanism, self.linked(inference), self.site, self.sizes, dtype=dtype, device=torch.device("cpu")
        )

    @property
    def has_learned_window(self) -> bool:
        """Whether the effective window of the mechanism follows a learned window."""
        name = self.mechanism.window_scalar
        return name is not None and self.mechanism.scalar(name).follows is not None

    # Methods, not properties: torch.jit.trace reads every property of a module.
    def _effective_window(self) -> str:
        assert self.mechanism.window_scalar is not None
        return self.mechanism.window_scalar

    def _window(self) -> str:
        follows = self.mechanism.scalar(self._effective_window()).follows
        assert follows is not None
        return follows

    def windows(self, inference: Inference) -> list[float]:
        """Effective window of each key head, in tokens. A cache must keep the keys in it.

        At most the window of the layer. Infinite if it has none, and there is no learned window or keys outside it can
        change other weights.
        """
        layer_window = math.inf if self.position.window is None else self.position.window
        if not self.has_learned_window or Promise.REFUSED_INERT not in self.mechanism.holds:
            return [layer_window] * self.sizes["G"]
        values = self.linked(inference)
        window_H = values.get(self._effective_window(), values[self._window()]).detach().expand(self.sizes["H"])
        return window_H.view(self.sizes["G"], -1).amax(1).clamp_max(layer_window).tolist()

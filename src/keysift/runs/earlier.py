"""Settings of run directories written before a model was described once: read, never written. Free of torch."""

from collections.abc import Mapping
from typing import Any

from keysift.models.arch import by_todays_names

_RENAMED = {"rate": "lr", "every": "save_every", "final_rate": "final_lr"}


def upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings by today's names; today's settings stay as they are.

    Before, a Multiscreen was given by psi or by depth, heads and width (8 if by nothing), and a Transformer by depth,
    heads and width (4, 4 and 128 if by nothing) and a mechanism (softmax if by nothing).
    """
    if "rate" not in settings:
        return by_todays_names(settings)
    rest = {_RENAMED.get(name, name): value for name, value in settings.items()}
    psi, depth, heads, width, mechanism = (rest.pop(name) for name in ("psi", "depth", "heads", "width", "mechanism"))
    if rest["arch"] == "transformer":
        if depth is None:
            depth, heads, width = 4, 4, 128
        return {**rest, "depth": depth, "heads": heads, "width": width, "mechanism": mechanism or "softmax"}
    if depth is None:
        psi = 8 if psi is None else psi
        depth, heads, width = psi, psi, psi**2
    return {**rest, "depth": depth, "tiles": heads, "width": width}

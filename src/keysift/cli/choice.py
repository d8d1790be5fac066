"""Flags that choose a model, for the verbs that train: read before the others, because the model's own flags follow."""

from typing import Any

from keysift.core.config import config
from keysift.models.arch import DEFAULTS, Arch, ArchName, field_names
from keysift.train.settings import CHOICES, choose


@config
class Choice:
    """Which model."""

    arch: ArchName | None = None
    """multiscreen unless said otherwise; keysift train --arch transformer --help shows that one's flags."""
    preset: str | None = None
    """A model of the paper's tables; keysift presets lists them."""
    psi: int | None = None
    """Size of a Multiscreen in one number: layers = tiles = psi, width = psi^2."""


def chosen(argv: list[str], base: Arch) -> Arch:
    """The model that --arch, --preset and --psi choose; a flag of another architecture is refused with the reason."""
    given: dict[str, Any] = {name: value(argv, f"--{name}") for name in CHOICES}
    if given["psi"] is not None and given["psi"].lstrip("-").isdecimal():
        given["psi"] = int(given["psi"])
    models = {name for default in DEFAULTS.values() for name in field_names(default)}
    flags = {word.removeprefix("--").split("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    fields = {flag: True for flag in (flag.removeprefix("no_") for flag in flags) if flag in models}
    return choose(base, {**given, **fields})


def value(argv: list[str], flag: str) -> str | None:
    for at, word in enumerate(argv):
        if word == flag and at + 1 < len(argv):
            return argv[at + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None

"""Flags that choose a model. They are read first, because the other flags depend on the model."""

from typing import Any

from keysift.core.config import config
from keysift.models.architecture import DEFAULT_ARCHS, Arch, ArchName, field_names
from keysift.train.settings import CHOICES, choose


@config
class Choice:
    """The model to train."""

    arch: ArchName | None = None
    """Architecture, by default multiscreen; keysift train --arch transformer --help shows its flags."""
    preset: str | None = None
    """A preset; keysift presets lists them."""
    psi: int | None = None
    """Size of a Multiscreen: layers = tiles = psi, width = psi^2."""


def chosen_model(argv: list[str], base: Arch) -> Arch:
    """The model that --arch, --preset and --psi choose. A flag of another architecture raises an error."""
    choices: dict[str, Any] = {name: flag_value(argv, f"--{name}") for name in CHOICES}
    if choices["psi"] is not None and choices["psi"].lstrip("-").isdecimal():
        choices["psi"] = int(choices["psi"])
    model_fields = {name for default in DEFAULT_ARCHS.values() for name in field_names(default)}
    flags = {word.removeprefix("--").split("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    fields = {flag: True for flag in (flag.removeprefix("no_") for flag in flags) if flag in model_fields}
    return choose(base, {**choices, **fields})


def flag_value(argv: list[str], flag: str) -> str | None:
    """The value of a flag in unparsed arguments."""
    for index, word in enumerate(argv):
        if word == flag and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None

"""A command as a user would type it, from the flags it was called with: only what is not the default, without output
flags, so that the same measurement is always called the same."""

import shlex
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import tyro


def spelled(verb: str, args: Any, *, without: tuple[str, ...] = ()) -> str:
    """`spelled("eval loss", Loss(model="runs/a", tokens=9))` is `keysift eval loss runs/a --tokens 9`."""
    return " ".join(["keysift", verb, *map(shlex.quote, _words(args, without))])


def _words(args: Any, without: tuple[str, ...]) -> list[str]:
    hints = get_type_hints(type(args), include_extras=True)
    places, flags = list[str](), list[str]()
    for field in fields(args):
        value = getattr(args, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in without or value == default:
            continue
        if is_dataclass(value):
            flags += _words(value, without)
        elif tyro.conf.Positional in getattr(hints[field.name], "__metadata__", ()):
            places += _texts(value)
        else:
            flags += [f"--{field.name.replace('_', '-')}", *([] if value is True else _texts(value))]
    return [*places, *flags]


def _texts(value: Any) -> list[str]:
    several = value if isinstance(value, tuple) else (value,)
    return [f"{one:g}" if isinstance(one, float) else str(one) for one in several]

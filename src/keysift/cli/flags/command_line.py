"""The command line that reproduces a call, and the text of an argument.

The command line contains no output flags and only flags that differ from their default, so equal measurements have
equal commands.
"""

import os
import shlex
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import tyro


def decode_argument(text: str) -> str:
    """An argument as UTF-8 text. Where the locale is not UTF-8, Python reads its bytes as other characters."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


def command_line(verb: str, args: Any, *, without: tuple[str, ...] = ()) -> str:
    """The command line of parsed arguments.

    `command_line("eval loss", Loss(models=("runs/a",), tokens=9))` is `keysift eval loss runs/a --tokens 9`.
    """
    return " ".join(["keysift", verb, *map(shlex.quote, _words(args, without))])


def _words(args: Any, without: tuple[str, ...]) -> list[str]:
    hints = get_type_hints(type(args), include_extras=True)
    positional, flags = list[str](), list[str]()
    for field in fields(args):
        value = getattr(args, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in without or value == default:
            continue
        if is_dataclass(value):
            flags += _words(value, without)
        elif tyro.conf.Positional in getattr(hints[field.name], "__metadata__", ()):
            positional += _texts(value)
        else:
            flags += [f"--{field.name.replace('_', '-')}", *([] if value is True else _texts(value))]
    return [*positional, *flags]


def _texts(value: Any) -> list[str]:
    items = value if isinstance(value, tuple) else (value,)
    return [f"{item:g}" if isinstance(item, float) else str(item) for item in items]

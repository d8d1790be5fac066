"""Frozen, keyword-only configs that convert to JSON and back. Command-line flags use the same fields (see cli/).

@config
class Sizes:
    width: int
    depth: int = 4

from_dict(Sizes, {"width": 8}) == Sizes(width=8)
"""

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from keysift.core import safe_json
from keysift.core.errors import ConfigError
from keysift.core.registry import nearest

C = TypeVar("C")
INTEGERS = range(-(2**63), 2**64)  # of settings; a float cannot hold every larger one


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[C]) -> type[C]:
    """Decorator: a frozen, keyword-only dataclass."""
    return dataclass(frozen=True, kw_only=True)(cls)


def to_dict(value: Any) -> Any:
    """Convert to plain JSON types: nested configs become dictionaries, tuples become lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_dict(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    return value


def from_dict(cls: type[C], data: Mapping[str, Any]) -> C:
    """Build a config from a dictionary. Unknown keys, missing keys and wrong types raise ConfigError."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{cls.__name__} is read from a JSON object, got {_kind(data)}; pass {{...}}")
    hints = get_type_hints(cls)
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise ConfigError(
                f"{cls.__name__} has no field {key!r}; {nearest(key, known)}its fields: {', '.join(known)}"
            )
    for field in fields(cls):  # type: ignore[arg-type]
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in data:
            raise ConfigError(f"{cls.__name__} needs {field.name!r}, which is missing; add it")
    return cls(**{key: _read(f"{cls.__name__}.{key}", hints[key], value) for key, value in data.items()})


def save(value: Any, path: Path) -> None:
    path.write_text(json.dumps(to_dict(value), indent=2) + "\n", encoding="utf-8")


def load(cls: type[C], path: Path) -> C:
    try:
        data = safe_json.load(path)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); write it again with save()") from error
    return from_dict(cls, data)


def _read(where: str, hint: Any, value: Any) -> Any:
    if type(value) is int and value not in INTEGERS:
        raise ConfigError(f"{where} must be a number of at most 64 bits, got one of {value.bit_length()} bits")
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _read_union(where, hint, value)
    if origin is Literal:
        return _expect(where, value in get_args(hint), f"one of {', '.join(map(repr, get_args(hint)))}", value)
    if origin is tuple:
        _expect(where, isinstance(value, list | tuple), "a list", value)
        return tuple(_read(f"{where}[{i}]", get_args(hint)[0], item) for i, item in enumerate(value))
    if is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value)
    if hint is float and type(value) is int:
        return float(value)
    # isinstance would accept a bool as an int, but depth = true is a mistake.
    return _expect(where, type(value) is hint, _NAMES.get(hint, str(hint)), value)


def _read_union(where: str, hint: Any, value: Any) -> Any:
    options = get_args(hint)
    for option in options:
        try:
            return _read(where, option, value)
        except ConfigError:
            continue
    return _expect(where, False, " or ".join(_NAMES.get(option, str(option)) for option in options), value)


def _expect(where: str, ok: bool, wanted: str, value: Any) -> Any:
    if not ok:
        raise ConfigError(f"{where} must be {wanted}, got {value!r} ({_kind(value)})")
    return value


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__)


_NAMES: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}

"""Parse the options of a source: `letters=8,values=4`. Free of torch."""

from typing import Any

from keysift.core.errors import DataError


def options(spec: str) -> dict[str, Any]:
    """Parse `a=1,b=0.5,c=text` into a dictionary."""
    parsed: dict[str, Any] = {}
    for part in filter(None, spec.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise DataError(f"options of a source are written key=value,key=value; got {part!r}")
        parsed[key.strip()] = _number(value.strip())
    return parsed


def _number(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value

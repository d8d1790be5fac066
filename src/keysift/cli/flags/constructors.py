"""Parsing rules for types that tyro does not handle as needed."""

from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from keysift.core.config import INTEGERS
from keysift.core.errors import RangeError

RULES = ConstructorRegistry()


@RULES.primitive_rule
def integer(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse an integer of at most 64 bits: sizes and times are computed from it as floats."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: parse_integer(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


@RULES.primitive_rule
def switch_or_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse `--expand-windows` as True and `--expand-windows 4096` as a number."""
    if info.type != (bool | int):
        return None
    return PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[INT]",
        instance_from_str=lambda words: parse_integer(words[0]) if words else True,
        is_instance=lambda value: isinstance(value, int),
        # Only used to show the default in the help.
        str_from_instance=lambda value: [str(value)],
    )


def parse_integer(word: str) -> int:
    value = int(word)
    if value not in INTEGERS:
        raise RangeError(f"an integer must lie within 64 bits, got one of {len(word)} digits; give a smaller one")
    return value

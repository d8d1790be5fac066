"""Parsing rules for types that tyro does not handle as needed."""

from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

RULES = ConstructorRegistry()


@RULES.primitive_rule
def switch_or_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse `--expand-windows` as True and `--expand-windows 4096` as a number."""
    if info.type != (bool | int):
        return None
    return PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[INT]",
        instance_from_str=lambda words: int(words[0]) if words else True,
        is_instance=lambda value: isinstance(value, int),
        # Only used to show the default in the help.
        str_from_instance=lambda value: [str(value)],
    )

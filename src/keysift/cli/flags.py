"""Types whose flags tyro would make otherwise."""

from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

RULES = ConstructorRegistry()


@RULES.primitive_rule
def switch_or_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`--expand-windows` and `--expand-windows 4096`."""
    if info.type != (bool | int):
        return None
    return PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[INT]",
        instance_from_str=lambda words: int(words[0]) if words else True,
        is_instance=lambda value: isinstance(value, int),
        # A default is shown in the help, never parsed.
        str_from_instance=lambda value: [str(value)],
    )

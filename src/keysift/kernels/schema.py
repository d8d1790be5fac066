"""Schemas of torch custom operators, generated from the NamedTuple of their inputs."""

from typing import Any

from torch import Tensor

_TYPES = {Tensor: "Tensor", Tensor | None: "Tensor?", int: "int", float: "float", bool: "bool"}


def schema(inputs: type[tuple[Any, ...]]) -> str:
    """The arguments of an operator in torch's notation. `offset` is a SymInt, so that one graph serves every offset."""
    arguments = (
        (name, "SymInt" if name == "offset" else _TYPES[kind]) for name, kind in inputs.__annotations__.items()
    )
    return ", ".join(f"{kind} {name}" for name, kind in arguments)

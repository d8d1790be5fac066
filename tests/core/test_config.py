"""Frozen configs: JSON round trip, and errors that name the field."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, Literal

import pytest

from keysift.core.config import config, from_dict, load, save, to_dict
from tests.refusals import refuses


@config
class Inner:
    rate: float = 0.5


@config
class Outer:
    """A config with a field of every kind."""

    width: int
    name: str = "a"
    fast: bool = False
    limit: int | None = None
    order: Literal["up", "down"] = "up"
    steps: tuple[int, ...] = ()
    inner: Inner = Inner()


FULL = Outer(width=3, name="b", fast=True, limit=7, order="down", steps=(1, 2), inner=Inner(rate=2.0))


def test_json_round_trip(tmp_path: Path) -> None:
    save(FULL, tmp_path / "config.json")
    assert load(Outer, tmp_path / "config.json") == FULL
    assert from_dict(Outer, {"width": 3}) == Outer(width=3)
    assert from_dict(Inner, {"rate": 1}) == Inner(rate=1.0)
    assert to_dict(FULL)["steps"] == [1, 2]


def test_configs_are_frozen_and_keyword_only() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.width = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        Outer(3)  # type: ignore[call-arg,misc]


@pytest.mark.parametrize(
    ("match", "data"),
    [
        (r"Outer has no field 'widht'; did you mean 'width'\? its fields: width, name", {"widht": 3}),
        (r"Outer needs 'width', which is missing; add it", {}),
        (r"Outer.width must be an integer, got 'x' \(a string\)", {"width": "x"}),
        (r"Outer.width must be an integer, got True \(true or false\)", {"width": True}),
        (r"Outer.limit must be an integer or null, got 'x'", {"width": 1, "limit": "x"}),
        (r"Outer.order must be one of 'up', 'down', got 'sideways'", {"width": 1, "order": "sideways"}),
        (r"Outer.steps must be a list, got 3", {"width": 1, "steps": 3}),
        (r"Outer.steps\[1\] must be an integer, got 0.5 \(a number\)", {"width": 1, "steps": [1, 0.5]}),
        (r"Outer.width must be a number of at most 64 bits, got one of 1329 bits", {"width": 10**400}),
        (r"Outer.limit must be a number of at most 64 bits, got one of 65 bits", {"width": 1, "limit": 2**64}),
        (r"Inner.rate must be a number of at most 64 bits", {"width": 1, "inner": {"rate": 10**400}}),
        (r"Inner has no field 'rat'; did you mean 'rate'", {"width": 1, "inner": {"rat": 1.0}}),
        (r"Inner is read from a JSON object, got a list; pass \{...\}", {"width": 1, "inner": []}),
    ],
)
def test_refuses(match: str, data: dict[str, Any]) -> None:
    with refuses(match):
        from_dict(Outer, data)


def test_invalid_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"width": 3,')
    with refuses(r"config.json is not JSON \(.* line 1 .*\); write it again with save"):
        load(Outer, tmp_path / "config.json")

"""What mechanisms make of a row of scores."""

import json
import sys
from typing import Annotated

import tyro

from keysift.core.config import config


@config
class Args:
    scores: str
    """Scores of the keys, already scaled, separated by commas: 2,1,0.5"""
    second: str | None = None
    """Scores of the second map, for mechanisms that compare two; by default all equal."""
    mechanism: tuple[str, ...] = ()
    """Which mechanisms; by default all."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> None:
    print(args)

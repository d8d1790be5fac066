"""The playground as one HTML file: the sources in play/ joined together, and the record of what Python computes."""

import json
from collections.abc import Mapping
from typing import Any

from keysift.core.config import to_dict
from keysift.evaluate.play_record import Playground
from keysift.web.page import source

MATHEMATICS = ("rows", "entmax", "mechanisms", "plane", "number", "state", "check")
STYLES = ("colours", "base", "play/page", "play/charts")
PAGE = ("elements", "history", "address", "keys", "bars", "panels", "lines", "scores")
VIEWS = ("geometry", "planes", "maps_record", "maps", "real", "export", "main")


def play_page(record: Playground, real: Mapping[str, Any]) -> str:
    """`real` is what was measured of a real model (lens/thinning.py)."""
    parts = {
        "style": "".join(source(f"{name}.css") for name in STYLES),
        "record": as_json(record, real),
        "script": script(*MATHEMATICS, *PAGE, *VIEWS),
    }
    page = source("play/page.html")
    for name, text in parts.items():
        before, after = page.split(f"/*{name}*/")
        page = before + text + after
    return page


def script(*names: str) -> str:
    return '"use strict";\n' + "".join(source(f"play/{name}.js") for name in names)


def as_json(record: Playground, real: Mapping[str, Any]) -> str:
    """JSON inside a page: no `<`, so that no text in it can end the element."""
    whole = {**to_dict(record), "real": real}
    return json.dumps(whole, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def shipped_model() -> Mapping[str, Any]:
    """stories15M, measured once: `keysift play --model stories15M --json > src/keysift/web/play/stories15M.json`."""
    found: Mapping[str, Any] = json.loads(source("play/stories15M.json"))
    return found

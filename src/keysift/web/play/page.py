"""Playground page: styles, scripts, and a record with which the browser checks its own results."""

import json
from collections.abc import Mapping
from typing import Any

from keysift.core.config import to_dict
from keysift.records.playground import Playground
from keysift.web.shared.page import script_page, source

STYLES = ("play/page.css", "play/charts.css")
MATHEMATICS = (
    "play/mathematics/rows.js",
    "play/mathematics/entmax.js",
    "play/mathematics/mechanisms.js",
    "play/mathematics/scene.js",
    "play/mathematics/groups.js",
    "shared/number.js",
    "play/mathematics/state.js",
    "play/mathematics/check.js",
)
CONTROLS = (
    "shared/elements.js",
    "play/history.js",
    "play/drag.js",
    "play/address.js",
    "play/views/keys.js",
    "play/views/bars.js",
    "play/views/panels.js",
    "play/views/lines.js",
    "play/views/scores.js",
)
VIEWS = (
    "play/views/groups.js",
    "play/views/geometry.js",
    "play/views/geometry_charts.js",
    "play/views/maps_reader.js",
    "play/views/maps.js",
    "play/views/real.js",
    "play/export.js",
    "play/main.js",
)


def play_page(record: Playground, real_model: Mapping[str, Any]) -> str:
    """HTML of the playground. `real_model` is the measurement of a real model (`keysift play --model`)."""
    scripts = (*MATHEMATICS, *CONTROLS, *VIEWS)
    return script_page("play/page.html", styles=STYLES, scripts=scripts, data=page_data(record, real_model))


def page_data(record: Playground, real_model: Mapping[str, Any]) -> dict[str, Any]:
    """Data embedded in the page."""
    return {**to_dict(record), "real": real_model}


def stored_measurement() -> Mapping[str, Any]:
    """Stored measurement of stories15M, made with `keysift play --model stories15M --json`."""
    measurement: Mapping[str, Any] = json.loads(source("play/stories15M.json"))
    return measurement

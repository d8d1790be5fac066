"""The picture of docs/README.md shows the weights that Python computes, in both colour schemes."""

import xml.etree.ElementTree as ET
from typing import get_args

import pytest

from keysift.core.number import number
from keysift.kernels.weigh import weigh
from keysift.verify.playground_reference import PICTURE_PRESETS, picture_cases
from keysift.web.play.picture import Scheme, colours, picture


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_softmax_changes_the_weight_of_the_key_and_screening_does_not(scheme: Scheme) -> None:
    svg = ET.fromstring(picture(PICTURE_PRESETS, picture_cases(), scheme))
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    weak, strong = (weigh("softmax", [2 * c for c in preset.cosines]).tolist() for preset in PICTURE_PRESETS)
    for weight in (*weak, *strong, 0.64, 0.0):
        assert number(weight) in texts
    assert f"▼ −{number(weak[0] - strong[0])}, same score" in texts
    assert texts.count("same score, same weight") == 1
    filled = [rect.get("fill") for rect in svg.iter("{http://www.w3.org/2000/svg}rect")]
    assert filled.count(colours(scheme)["moved"]) == 1
    assert filled[0] == colours(scheme)["page"]


def test_light_and_dark_differ_in_every_text_colour() -> None:
    light, dark = colours("light"), colours("dark")
    assert all(light[name] != dark[name] for name in ("page", "ink", "soft", "bar", "moved"))

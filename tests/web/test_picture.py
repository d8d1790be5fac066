"""The README's picture says what Python computes, in both colour schemes."""

import xml.etree.ElementTree as ET
from typing import get_args

import pytest

from keysift.evaluate.play import COMPANIES, two_companies
from keysift.kernels.weigh import weigh
from keysift.web.number import number
from keysift.web.picture import Scheme, colours, picture


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_the_picture_shows_one_key_that_moved_and_one_that_did_not(scheme: Scheme) -> None:
    svg = ET.fromstring(picture(COMPANIES, two_companies(), scheme))
    shown = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    weak, strong = (weigh("softmax", [2 * c for c in company.cosines]).tolist() for company in COMPANIES)
    for weight in (*weak, *strong, 0.64, 0.0):
        assert number(weight) in shown
    assert f"▼ −{number(weak[0] - strong[0])}, same score" in shown
    assert shown.count("same score, same weight") == 1
    filled = [rect.get("fill") for rect in svg.iter("{http://www.w3.org/2000/svg}rect")]
    assert filled.count(colours(scheme)["moved"]) == 1
    assert filled[0] == colours(scheme)["page"]


def test_the_schemes_differ_in_every_colour_of_text() -> None:
    light, dark = colours("light"), colours("dark")
    assert all(light[name] != dark[name] for name in ("page", "ink", "soft", "bar", "moved"))

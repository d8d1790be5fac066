"""A browser, and the record of a softmax model."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from keysift.lens.inspection import inspect
from keysift.records.lens import Record
from tests.lens.models import transformer
from tests.web.browser import chromium
from tests.web.inspect.opened import TEXT


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def softmax() -> Record:
    return inspect(transformer(), [TEXT], swap=["sparsemax"])

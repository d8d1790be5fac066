"""Registers the pytest marks of transformers' tests where test_upstream.py runs them."""

import os
import re
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    checkout = os.environ.get("TRANSFORMERS_TESTS")
    if checkout is None:
        return
    folder = Path(checkout) / "tests"
    for file in (*folder.glob("*.py"), *folder.glob("generation/*.py"), *folder.glob("exporters/*.py")):
        for name in set(re.findall(r"\bmark\.(\w+)", file.read_text(encoding="utf-8"))):
            config.addinivalue_line("markers", f"{name}: of transformers")

"""Marks of transformers' tests where test_upstream.py runs them; warnings of newer transformers that are expected."""

import os
import re
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # transformers 5.23 renames these methods. peft, its own Trainer and versions before use the old names.
    renamed = r"ignore:`(is_)?gradient_checkpointing\w*` is deprecated:FutureWarning"
    config.addinivalue_line("filterwarnings", renamed)
    checkout = os.environ.get("TRANSFORMERS_TESTS")
    if checkout is None:
        return
    folder = Path(checkout) / "tests"
    for file in (*folder.glob("*.py"), *folder.glob("generation/*.py"), *folder.glob("exporters/*.py")):
        for name in set(re.findall(r"\bmark\.(\w+)", file.read_text(encoding="utf-8"))):
            config.addinivalue_line("markers", f"{name}: of transformers")

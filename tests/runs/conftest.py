"""Fixtures of tests/train/: corpus, cache and a small config."""

from tests.train.conftest import cache, corpus, tiny  # noqa: F401

"""The text, the cache and the small config of tests/train/."""

from tests.train.conftest import cache, corpus, tiny  # noqa: F401

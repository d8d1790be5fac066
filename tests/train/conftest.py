"""Fixtures: a small corpus, a separate cache and a config that trains in seconds."""

from pathlib import Path

import pytest

from keysift.models.architecture import MultiscreenArch
from keysift.train.config import TrainConfig

WORDS = ("def", "return", "self", "for", "in", "if", "not", "x", "y", "(", ")", ":", "=", "\n    ", "None", "import")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with forty different short documents. Every user can read it, because some tests change the user."""
    folder = tmp_path_factory.mktemp("text")
    number = 1
    for document in range(40):
        words = []
        for _ in range(160):
            number = (number * 48271) % (2**31 - 1)
            words.append(WORDS[number % len(WORDS)])
        (folder / f"{document:02d}.txt").write_text(" ".join(words))
    return folder


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """KEYSIFT_CACHE for this session."""
    folder = tmp_path_factory.mktemp("cache")
    patch = pytest.MonkeyPatch()
    patch.setenv("KEYSIFT_CACHE", str(folder))
    return folder


@pytest.fixture
def tiny(corpus: Path) -> TrainConfig:
    """Config that trains in seconds. It has two accumulation steps, so every test covers accumulation."""
    return TrainConfig(
        model=MultiscreenArch.psi(2),
        data=str(corpus),
        context=16,
        batch_tokens=64,
        micro_tokens=32,
        steps=12,
        save_every=4,
        val_sequences=4,
        sample_tokens=4,
    )

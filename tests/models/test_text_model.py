"""Text generation with `keysift.open`."""

from pathlib import Path

import pytest

import keysift
from keysift import Inference, Request, Sampling
from keysift.data.tokenizers import bpe
from keysift.data.tokenizers.bytes import Bytes
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.text_model import TextModel
from tests.models.checks import perturbed_multiscreen
from tests.refusals import refuses

SIZES = {"depth": 1, "tiles": 2, "width": 16}
DRAWN = Sampling(temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    keysift.save(perturbed_multiscreen(MultiscreenConfig(vocab_size=257, **SIZES), seed=2), directory)
    Bytes().save(directory)
    return keysift.open(directory)


def test_single_batched_and_streamed_generation_agree(text: TextModel) -> None:
    assert not text.model.training
    alone = text.generate("ab", max_new_tokens=20, sampling=DRAWN)
    assert len(alone.encode(errors="replace")) >= 20
    pieces = list(text.stream("ab", max_new_tokens=20, sampling=DRAWN))
    assert "".join(pieces) == alone
    assert len(pieces) > 5
    assert all(pieces)
    both = text.generate(["ab", "long enough to pad"], max_new_tokens=20, sampling=DRAWN)
    assert both[0] == alone
    assert text.generate(["ab"], max_new_tokens=20, sampling=DRAWN) == [alone]
    assert text.generate("") == text.generate(Request(prompt=[256])), "an empty prompt starts after an end token"


def test_requests_override_settings(text: TextModel) -> None:
    free = text.generate("ab", max_new_tokens=30)
    stop = free[3:5]
    result = text.generate(
        [
            Request(prompt="ab", max_new_tokens=4),
            Request(prompt="ab", max_new_tokens=30, stop=(stop,)),
            Request(prompt="x", sampling=DRAWN, max_new_tokens=9),
            "ab",
        ],
        max_new_tokens=30,
    )
    assert result == [
        text.generate("ab", max_new_tokens=4),
        free.split(stop)[0],
        text.generate("x", sampling=DRAWN, max_new_tokens=9),
        free,
    ]
    assert text.generate("ab", max_new_tokens=30, stop=stop) == free.split(stop)[0]


def test_inference_reaches_the_model(text: TextModel) -> None:
    with refuses("this model does not state its training length"):
        text.generate("ab", inference=Inference(expand_windows=True))
    generation = text.start([Request(prompt="ab")], inference=Inference(expand_windows=7))
    assert generation._cache.inference.expand_windows == 7


def test_padded_vocabulary_generates_text(tmp_path: Path) -> None:
    keysift.save(perturbed_multiscreen(MultiscreenConfig(vocab_size=300, **SIZES), seed=2), tmp_path)
    Bytes().save(tmp_path)
    keysift.open(tmp_path).generate("a", max_new_tokens=50, sampling=Sampling(temperature=3.0))


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    keysift.save(perturbed_multiscreen(MultiscreenConfig(vocab_size=257, **SIZES)), tmp_path)
    with refuses("holds no tokenizer"):
        keysift.open(tmp_path)
    bpe.train(["some text and more text"], 259).save(tmp_path)
    with refuses("the tokenizer bpe:259 has 259 tokens and the model has 257"):
        keysift.open(tmp_path)

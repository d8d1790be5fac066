"""Checks of an installation (`keysift doctor --check`): kernels, training, generation, a page, and installed extras.

They use only what the package contains, write to a temporary folder, and take a minute on one core.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from keysift.core.config import config
from keysift.core.errors import DisagreementError, UnsupportedError

# One mechanism for each compiled kernel, and softmax for sdpa.
MECHANISMS = ("screening", "softmax", "softpick", "entmax15")
STEPS = 20
_TEXT = "the quick brown fox jumps over the lazy dog. " * 20
_WAIT = "--virtual-time-budget=5000"  # the page compares its numbers after it is drawn
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@config
class Check:
    """Result of one check. `passed` is None if it could not run here; `detail` says what was seen."""

    name: str
    passed: bool | None
    detail: str
    seconds: float


def check_installation(on_end: Callable[[Check], None]) -> tuple[Check, ...]:
    """Run every check, also after one has failed."""
    checks: dict[str, Callable[[Path], str]] = {
        "kernels agree with the definition": _kernels,
        f"a model trains {STEPS} steps": _train,
        "the trained model generates": _generate,
        "the playground opens": _page,
        "extra [figures] draws": _figures,
        "extra [hub] reads the trained model": _hub,
    }
    results = []
    with TemporaryDirectory(prefix="keysift-check-") as folder:
        for name, check in checks.items():
            start = time.monotonic()
            passed: bool | None = True
            try:
                detail = check(Path(folder))
            except (UnsupportedError, ModuleNotFoundError) as reason:
                passed, detail = None, str(reason)
            except Exception as error:  # whatever is wrong with the installation, the other checks still run
                passed, detail = False, f"{type(error).__name__}: {error}"
            results.append(Check(name=name, passed=passed, detail=detail, seconds=time.monotonic() - start))
            on_end(results[-1])
    return tuple(results)


def _kernels(folder: Path) -> str:
    """Value and every gradient of each backend that accepts a mechanism, against the definition in fp64."""
    from keysift.kernels.attend import BACKENDS
    from keysift.mechanisms import MECHANISMS as ALL
    from keysift.verify.check import check_backend

    lines = [check_backend(ALL.find(name), backend) for name in MECHANISMS for backend in BACKENDS.names()]
    wrong = [f"{line.name}: {line.example}" for line in lines if not line.correct]
    _require(not wrong, "; ".join(wrong))
    agreeing = sorted({line.name for line in lines if line.observed == "agrees"})
    return f"{', '.join(MECHANISMS)} on {', '.join(agreeing)}"


def _train(folder: Path) -> str:
    from keysift.data.shards import build
    from keysift.models.architecture import MultiscreenArch
    from keysift.runs.summary import summary
    from keysift.train.config import TrainConfig
    from keysift.train.loop import train

    texts = folder / "texts"
    texts.mkdir()
    for number in range(20):
        (texts / f"{number}.txt").write_text(_TEXT[number:])
    corpus = build(str(texts), "bytes", folder / "corpus", show=False)  # here, not in the cache of the user
    config = TrainConfig(
        model=MultiscreenArch.psi(4),
        data=str(corpus.path),
        context=32,
        batch_tokens=512,
        steps=STEPS,
        sample_tokens=0,
        device="cpu",
    )
    train(config, folder / "run", show=False)
    losses = summary(folder / "run").losses
    change = f"loss {losses[0]:.3f} to {losses[-1]:.3f}"
    _require(len(losses) == STEPS and losses[-1] < losses[0], f"{change} in {len(losses)} steps")
    return change


def _generate(folder: Path) -> str:
    from keysift.models.text_model import open as open_model
    from keysift.verify.cache_equality import check_cache

    model = open_model(folder / "run")
    check_cache(model.model, (5, 1, 1, 9))
    text = model.generate("the quick ", max_new_tokens=16)
    return f"{text!r}; the cache equals the full forward pass"


def _page(folder: Path) -> str:
    """The page compares its own results with Python's when it opens, and says so."""
    from keysift.verify.playground_reference import playground
    from keysift.web.play.page import play_page, stored_measurement

    file = folder / "play.html"
    file.write_text(play_page(playground(), stored_measurement()), encoding="utf-8")
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise UnsupportedError(f"no browser found ({', '.join(_BROWSERS)}); the page was written, but not opened")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", _WAIT)
    command = [browser, *flags, f"--user-data-dir={folder / 'browser'}", "--dump-dom", file.as_uri()]
    page = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    seen = re.search(r'<p id="checked"[^>]*>([^<]*)', page)
    sentence = seen[1] if seen else "the page did not check its numbers"
    _require("agree with keysift" in sentence, sentence)
    return sentence


def _figures(folder: Path) -> str:
    from keysift.web.figures.evaluation import write

    files = write(lambda axes: axes.plot([1, 2], [2, 1]), folder / "figure")
    return ", ".join(f"{file.suffix[1:]} of {file.stat().st_size:,} bytes" for file in files)


def _hub(folder: Path) -> str:
    import torch

    from keysift.hub import MultiscreenForCausalLM
    from keysift.hub.lens_model import quiet
    from keysift.models.text_model import open as open_model

    model = open_model(folder / "run").model
    tokens = torch.arange(32)[None]
    with torch.no_grad(), quiet():
        error = float(
            (MultiscreenForCausalLM.from_pretrained(folder / "run")(tokens).logits - model(tokens)).abs().max()
        )
    _require(error == 0, f"logits in transformers differ by {error:.1e}")
    return "the same logits in transformers"


def _require(correct: bool, problem: str) -> None:
    if not correct:
        raise DisagreementError(problem)

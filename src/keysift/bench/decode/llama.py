"""Decoding with a Llama of the shape of stories15M, against transformers and against the bandwidth of one thread.

The two libraries take turns in one process, with equal weights in the same dtype. A turn reads a prompt, which is not
timed, and then decodes some tokens greedily. Every round also times the sum of a large tensor.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import mean
from typing import Any, Protocol

import torch
from torch import Tensor

from keysift.bench.collector import Collector
from keysift.bench.timing import median_ratio, row
from keysift.core.config import config
from keysift.core.errors import DisagreementError
from keysift.kernels.cpu.decode import Decoder
from keysift.kernels.cpu.huge_pages import use_huge_pages
from keysift.models.architecture import TransformerArch
from keysift.models.language_model import LanguageModel
from keysift.models.registry import build, configure
from keysift.records.bench import at_least

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SPEEDUPS = {"fp32": 2.5, "bf16": 4.0, "fp16": 4.0}
READ_SHARE = 0.7
ALLOWED = 1e-4  # of the largest logit, in fp32
WARMUP = 2  # tokens of a turn that are not timed


class Text(Protocol):
    """A model and a text that it continues."""

    def read(self, tokens_1T: Tensor) -> Tensor: ...

    def step(self, tokens_1T: Tensor) -> Tensor: ...


Peer = Callable[[LanguageModel], Text]  # builds the same model in another library


@config
class Shape:
    """Shape of the Llama and of the measurement. The default shape is that of stories15M."""

    vocabulary: int = 32_000
    width: int = 288
    depth: int = 6
    heads: int = 6
    hidden_width: int = 768
    context: int = 256
    prompt: int = 16
    tokens: int = 32
    """Decoded in a turn."""
    rounds: int = 15
    read_megabytes: int = 256
    """Size of the tensor that is summed."""


FULL = Shape()


class OurText:
    """A model of this library, with its cache."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.cache = model.cache(1)

    def read(self, tokens_1T: Tensor) -> Tensor:
        self.cache = self.model.cache(1)
        return self.step(tokens_1T)[:, -1:]

    @torch.inference_mode()
    def step(self, tokens_1T: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens_1T, cache=self.cache)
        return logits


def measure_llama(results: Collector, shape: Shape, peer: Peer | None) -> None:
    """Add rows, targets and notes for each dtype."""
    if peer is None:
        results.notes.append("Llama: not compared with transformers, which is not installed")
    memory = torch.ones(shape.read_megabytes * 2**18)
    small_pages = _bandwidth(memory)
    use_huge_pages([memory])
    results.notes.append(
        f"Llama: one thread reads {small_pages / 1e9:.1f} GB/s from pages as they are allocated and "
        f"{_bandwidth(memory) / 1e9:.1f} GB/s from pages of 2 MB; weights and their reading use pages of 2 MB"
    )
    for name in DTYPES:
        _compare(results, shape, name, peer, memory)


def build_model(shape: Shape, dtype: torch.dtype) -> LanguageModel:
    arch = TransformerArch(
        depth=shape.depth, heads=shape.heads, width=shape.width, hidden_width=shape.hidden_width, final_gain=True
    )
    config = configure(arch, vocab_size=shape.vocabulary, context=shape.context)
    return build(config, torch.Generator().manual_seed(0)).eval().to(dtype)


def check_peer(texts: Mapping[str, Text], shape: Shape) -> None:
    """Raise unless both give the same logits for a prompt and the token after it."""
    prompt = _prompt(shape)
    ours, *others = (torch.cat([text.read(prompt), text.step(prompt[:, :1])], dim=1) for text in texts.values())
    for theirs in others:
        error = float((ours - theirs).abs().max() / theirs.abs().max())
        if not error <= ALLOWED:
            raise DisagreementError(
                f"logits differ from those of transformers by {error:.1e} of the largest, where {ALLOWED:.0e} is "
                f"allowed; run tests/hub before timing this model"
            )


def time_turns(texts: Mapping[str, Text], shape: Shape, memory: Tensor) -> dict[str, list[float]]:
    """Seconds of a token of each text, and of one sum of `memory` ("reading"), in every round."""
    times: dict[str, list[float]] = {name: [] for name in (*texts, "reading")}
    for number in range(-1, shape.rounds):
        for name, text in texts.items():
            seconds = _turn(text, shape)
            times[name] += [seconds] if number >= 0 else []
        if number >= 0:
            times["reading"].append(memory.nbytes / _bandwidth(memory))
    return times


def time_parts(text: Text, shape: Shape) -> dict[str, float]:
    """Seconds of a token of our model ("token") and of its parts.

    They are the call into the compiled library, the checks before it and the search for the largest logit.
    """
    parts = {
        "library": (Decoder, "run"),
        "checks": (LanguageModel, "_find_step"),
        "largest": (sys.modules[__name__], "greedy"),
    }
    spent: dict[str, list[float]] = {name: [] for name in parts}
    with ExitStack() as stack:
        for name, (owner, function) in parts.items():
            stack.enter_context(_timed(owner, function, spent[name]))
        token = _turn(text, shape)
    # Without the library, no call reaches it.
    return {"token": token} | {name: mean(seconds[-shape.tokens :] or [0.0]) for name, seconds in spent.items()}


@contextmanager
def _timed(owner: Any, name: str, seconds: list[float]) -> Iterator[None]:
    """Within this context, append the CPU time of each call of this function of a class or module."""
    function = getattr(owner, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        result = function(*arguments, **options)
        seconds.append(time.process_time() - began)
        return result

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, function)


def greedy(logits_B1N: Tensor) -> Tensor:
    return logits_B1N.float().argmax(-1)


def _turn(text: Text, shape: Shape) -> float:
    token = greedy(text.read(_prompt(shape)))
    for number in range(WARMUP + shape.tokens):
        if number == WARMUP:
            began = time.process_time()
        token = greedy(text.step(token))
    return (time.process_time() - began) / shape.tokens


def _prompt(shape: Shape) -> Tensor:
    return torch.randint(shape.vocabulary, (1, shape.prompt), generator=torch.Generator().manual_seed(0))


def _bandwidth(memory: Tensor) -> float:
    """Bytes per second of the fastest of three sums."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        memory.sum()
        seconds.append(time.process_time() - began)
    return memory.nbytes / max(min(seconds), 1e-9)


def _compare(results: Collector, shape: Shape, name: str, peer: Peer | None, memory: Tensor) -> None:
    model = build_model(shape, DTYPES[name])
    texts: dict[str, Text] = {"ours": OurText(model)}
    if peer is not None:
        texts["theirs"] = peer(model)
    if name == "fp32":
        check_peer(texts, shape)
    times = results.measure_once(f"decode, Llama in {name}", lambda: time_turns(texts, shape, memory))
    size = sum(parameter.nbytes for parameter in model.parameters())
    share = size / memory.nbytes * median_ratio(times["reading"], times["ours"])
    spent = results.measure_once(f"decode, Llama in {name}: parts", lambda: time_parts(texts["ours"], shape))
    us = {key: 1e6 * seconds for key, seconds in spent.items()}
    rest = us["token"] - us["library"] - us["checks"] - us["largest"]
    results.notes.append(
        f"Llama in {name}: of a token, {us['library']:.0f} us were spent in the library, {us['checks']:.0f} us in "
        f"checks before it, {us['largest']:.0f} us in the search for the largest logit, {rest:.0f} us in other Python"
    )
    timed = row(
        f"Llama in {name}, {size / 1e6:.0f} MB",
        "decode",
        shape.prompt + WARMUP + shape.tokens,
        times["ours"],
        setting="CPU time, one thread",
        against="" if peer is None else f"transformers in {name}",
        theirs=times.get("theirs", ()),
    )
    results.rows.append(replace(timed, read_share=share, tokens_per_s=1 / timed.seconds.median))
    full = replace(shape, rounds=FULL.rounds) == FULL and shape.rounds >= FULL.rounds
    what = f"Llama of the shape of stories15M in {name}, one thread, decode"
    if peer is not None:
        value = median_ratio(times["theirs"], times["ours"])
        results.targets.append(at_least(f"{what}, against transformers", value, SPEEDUPS[name], full_size=full))
    read = f"{what}: bytes of weights per second, as a share of the read bandwidth"
    results.targets.append(at_least(read, share, READ_SHARE, full_size=full, unit=""))

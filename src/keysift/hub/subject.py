"""A model as a subject of the lens: ours, or a causal one of transformers by directory, GGUF file or name."""

import logging
import math
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors import safe_open
from torch import Tensor

from keysift.core import jsons, memory
from keysift.core.errors import DataError, KeysiftError, UnsupportedError
from keysift.hub.probe import probed
from keysift.lens.ours import holds_ours, open_ours
from keysift.lens.record import About
from keysift.lens.subject import Subject, Visit, next_tokens, pad

_CAUSAL = ("ForCausalLM", "LMHeadModel")


class Pretrained:
    """`model` and `tokenizer` as transformers gives them; the model is put into evaluation mode."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        config = model.config
        layers = config.num_hidden_layers
        self.about = About(
            name=name,
            kind="huggingface",
            family=config.model_type,
            mechanisms=("softmax",) * layers,
            heads=(config.num_attention_heads,) * layers,
            context=getattr(config, "max_position_embeddings", None),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            vocabulary=config.vocab_size,
        )

    def encode(self, text: str) -> list[int]:
        with _quiet():
            ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        # A token alone may lose its leading space; read after its neighbour it does not.
        pieces = [self.tokenizer.decode([ids[0]])]
        for before, token in pairwise(ids):
            pair, first = self.tokenizer.decode([before, token]), self.tokenizer.decode([before])
            pieces.append(pair[len(first) :] if pair.startswith(first) else self.tokenizer.decode([token]))
        return pieces

    def targets(self, ids: Sequence[int]) -> list[int]:
        return next_tokens(ids)

    @torch.no_grad()
    def run(self, texts: Sequence[Sequence[int]], visit: Visit) -> list[Tensor]:
        tokens, keep, padding = pad(texts)
        at = (keep.long().cumsum(1) - 1).clamp_min(0)
        with probed(self.model, visit, padding):
            found = self.model(
                input_ids=tokens, attention_mask=keep.long(), position_ids=at, use_cache=False, return_dict=True
            )
        return [found.logits[row, lead:] for row, lead in enumerate(padding)]


def open_subject(where: str) -> Subject:
    """A keysift run or saved model, or whatever transformers makes of the name."""
    path = Path(where).expanduser()
    return open_ours(path) if holds_ours(path) else open_pretrained(where)


def open_pretrained(where: str) -> Pretrained:
    """A local directory, a .gguf file, or a name that transformers can download."""
    transformers = _transformers()
    path = Path(where).expanduser()
    more: dict[str, Any] = {}
    if path.suffix == ".gguf" and path.is_file():
        more, source = {"gguf_file": path.name}, str(path.parent)
    elif path.is_dir():
        _check_directory(path)
        source = str(path)
    else:
        # Without a network transformers would try for half a minute; a downloaded model is found all the same.
        more, source = {"local_files_only": not _reachable()}, where
    # Nothing that came with a model runs: no code of its own, and no pickle.
    more["trust_remote_code"] = False
    with _quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(source, **more)
            _check_config(config, where)
            config._attn_implementation = None  # it may name a kernel that transformers would download and run
            if path.is_dir():
                _check_weights(path, config, transformers)
            if path.exists():
                _fits(path)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **more)
            # fp32 on a CPU; SDPA where the model has it, so that no layer holds its weights as a whole.
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                source, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **more
            )
        except KeysiftError:
            raise
        except ImportError as error:
            raise UnsupportedError(
                f"{where} cannot be read with what is installed ({_first_line(error)}); for GGUF files "
                f"pip install 'keysift[gguf]'"
            ) from error
        except Exception as error:  # what is wrong with a file, transformers says in a dozen classes
            if path.exists():
                raise DataError(f"{where} is not a model that transformers can read ({_first_line(error)})") from error
            raise DataError(
                f"{where} is neither a keysift model, nor a local Hugging Face directory, nor a name that can be "
                f"downloaded ({_first_line(error)})"
            ) from error
    if found["missing_keys"]:  # transformers would continue with random numbers in their place
        missing = sorted(found["missing_keys"])
        raise DataError(f"{where} lacks {len(missing)} of its weights, {missing[0]} among them; copy it again")
    return Pretrained(model, tokenizer, path.name if path.exists() else where)


def _check_weights(path: Path, config: Any, transformers: Any) -> None:
    """Refuses a model of many more numbers than its weights have, before memory is taken for it."""
    tensors = numbers = 0
    for file in filter(Path.is_file, path.glob("*.safetensors")):  # a pipe of that name would be read for ever
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                tensors, numbers = tensors + 1, numbers + math.prod(weights.get_slice(name).get_shape())
    if not tensors:
        raise UnsupportedError(
            f"{path} holds no .safetensors; weights in other formats are not read, convert them first"
        )
    layers, asked = config.num_hidden_layers, numbers
    if layers <= tensors:
        with torch.device("meta"):
            described = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        asked = sum(parameter.numel() for parameter in described.parameters())
    # The output may be tied to the embedding in one and not in the other.
    if layers > tensors or asked > 2 * numbers:
        raise DataError(
            f"{path}: config.json describes a model of {layers} layers, more than its weights can hold "
            f"({tensors} tensors, {numbers:,} numbers); the two are not of one model"
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _reachable() -> bool:
    from huggingface_hub import constants

    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _fits(path: Path) -> None:
    """Weights are read in fp32, so files of two or fewer bytes a number grow when loaded."""
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    growth = 8 if path.suffix == ".gguf" else 2
    size = growth * sum(file.stat().st_size for file in files)
    memory.need(size, f"{path} in fp32", "close other programs or take a smaller model")


def _check_directory(path: Path) -> None:
    config = path / "config.json"
    if not config.is_file():
        raise DataError(f"{path} holds no config.json, so it is no model; give a run, a saved model or a model's name")
    try:
        says = jsons.loads(config.read_text())
    except ValueError as error:
        raise DataError(f"{config} is not JSON ({error}); was it cut short?") from error
    architectures = says.get("architectures") or [] if isinstance(says, dict) else None
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise DataError(f"{config} does not describe a model; was it written by transformers?")
    if architectures and not any(name.endswith(_CAUSAL) for name in architectures):
        raise UnsupportedError(
            f"{path} is a {architectures[0]}, which does not read from left to right; inspect needs a causal language "
            f"model such as GPT-2 or Llama"
        )


def _check_config(config: Any, where: str) -> None:
    causal = any(name.endswith(_CAUSAL) for name in config.architectures or [])
    if config.is_encoder_decoder or not (causal or config.architectures is None):
        raise UnsupportedError(
            f"{where} is a {config.model_type} model, which does not read from left to right; inspect needs a causal "
            f"language model such as GPT-2 or Llama"
        )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedError(
            "Hugging Face models need the extra [hub]; install it with pip install 'keysift[hub]'"
        ) from error
    return transformers


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers prints bars and warnings about length while it loads and tokenises; the lens says what matters."""
    from transformers.utils import logging as theirs

    level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.ERROR)
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()

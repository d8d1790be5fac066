"""Open a model for the lens: a keysift model, or a causal transformers model by directory, GGUF file or name."""

import logging
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors import safe_open
from torch import Tensor

from keysift.core import memory, safe_json
from keysift.core.errors import DataError, KeysiftError, UnsupportedError
from keysift.hub.probe import probed
from keysift.hub.taps import edit, trace
from keysift.lens.keysift_model import is_keysift_model, open_keysift_model
from keysift.lens.model import LensModel, Visit, ignore_layer, next_tokens, pad, token_pieces
from keysift.records.lens import ModelInfo

_CAUSAL = ("ForCausalLM", "LMHeadModel")


class TransformersModel:
    """A LensModel for a model and tokenizer of transformers. Puts the model into evaluation mode."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        config = model.config
        layers = config.num_hidden_layers
        self.info = ModelInfo(
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
        with quiet():
            ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return token_pieces(self.tokenizer.decode, ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def targets(self, ids: Sequence[int]) -> list[int]:
        return next_tokens(ids)

    def trace(self, *patterns: str) -> AbstractContextManager[dict[str, Tensor]]:
        return trace(self.model, *patterns)

    def edit(self, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> AbstractContextManager[None]:
        return edit(self.model, changes)

    @torch.no_grad()
    def run(self, texts: Sequence[Sequence[int]], visit: Visit) -> list[Tensor]:
        tokens, keep, padding = pad(texts)
        at = (keep.long().cumsum(1) - 1).clamp_min(0)
        with nullcontext() if visit is ignore_layer else probed(self.model, visit, padding):
            output = self.model(
                input_ids=tokens, attention_mask=keep.long(), position_ids=at, use_cache=False, return_dict=True
            )
        return [output.logits[row, lead:] for row, lead in enumerate(padding)]


def open_model(where: str) -> LensModel:
    """A keysift run or saved model, or a model that transformers can load."""
    path = Path(where).expanduser()
    return open_keysift_model(path) if is_keysift_model(path) else open_transformers_model(where)


def open_transformers_model(where: str) -> TransformersModel:
    """A local directory, a .gguf file, or a name that transformers can download."""
    transformers = _transformers()
    path = Path(where).expanduser()
    options: dict[str, Any] = {}
    if path.suffix == ".gguf" and path.is_file():
        options, source = {"gguf_file": path.name}, str(path.parent)
    elif path.is_dir():
        _check_directory(path)
        source = str(path)
    else:
        # Without a network transformers would retry for half a minute; downloaded models are still found.
        options, source = {"local_files_only": not _reachable()}, where
    # Run nothing that comes with a model: no remote code, no pickle.
    options["trust_remote_code"] = False
    with quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(source, **options)
            _check_config(config, where)
            config._attn_implementation = None  # it may name a kernel that transformers would download and run
            if path.is_dir():
                _check_weights(path, config, transformers)
            if path.exists():
                _check_memory(path)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
            # fp32 on a CPU; SDPA where available, so that no layer holds all its weights at once.
            model, loading = transformers.AutoModelForCausalLM.from_pretrained(
                source, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
            )
        except KeysiftError:
            raise
        except ImportError as error:
            raise UnsupportedError(
                f"{where} cannot be read with what is installed ({_first_line(error)}); for GGUF files "
                f"pip install 'keysift[gguf]'"
            ) from error
        except Exception as error:  # transformers raises a dozen classes for invalid files
            if path.exists():
                raise DataError(f"{where} is not a model that transformers can read ({_first_line(error)})") from error
            raise DataError(
                f"{where} is neither a keysift model, nor a local Hugging Face directory, nor a name that can be "
                f"downloaded ({_first_line(error)})"
            ) from error
    if loading["missing_keys"]:  # transformers would use random numbers instead
        missing = sorted(loading["missing_keys"])
        raise DataError(f"{where} lacks {len(missing)} of its weights, {missing[0]} among them; copy it again")
    return TransformersModel(model, tokenizer, path.name if path.exists() else where)


def _check_weights(path: Path, config: Any, transformers: Any) -> None:
    """Reject a config that describes far more parameters than the weights have, before memory is allocated for it."""
    tensors = numbers = 0
    for file in filter(Path.is_file, path.glob("*.safetensors")):  # reading a named pipe would block
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                tensors, numbers = tensors + 1, numbers + math.prod(weights.get_slice(name).get_shape())
    if not tensors:
        raise UnsupportedError(f"{path} has no .safetensors file; convert weights in other formats first")
    layers, described_numbers = config.num_hidden_layers, numbers
    if layers <= tensors:
        with torch.device("meta"):
            described = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        described_numbers = sum(parameter.numel() for parameter in described.parameters())
    # Twice, because the output may be tied to the embedding in only one of the two.
    if layers > tensors or described_numbers > 2 * numbers:
        raise DataError(
            f"{path}: config.json describes a model of {layers} layers, more than its weights can hold "
            f"({tensors} tensors, {numbers:,} numbers); copy both from one model"
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


def _check_memory(path: Path) -> None:
    """Raise if the weights do not fit in memory. They are loaded in fp32, so files with fewer bytes per number grow."""
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    growth = 8 if path.suffix == ".gguf" else 2
    size = growth * sum(file.stat().st_size for file in files)
    memory.require(size, f"{path} in fp32", "close other programs or use a smaller model")


def _check_directory(path: Path) -> None:
    for file in path.iterdir():
        if file.exists() and not file.is_file() and not file.is_dir():
            raise DataError(f"{file} is a pipe or a device, which transformers would wait for; remove it")
    config = path / "config.json"
    if not config.is_file():
        raise DataError(
            f"{path} has no config.json; give a run, a saved model, a Hugging Face directory or a model name"
        )
    try:
        content = safe_json.load(config)
    except ValueError as error:
        raise DataError(f"{config} is not JSON ({error}); was it cut short?") from error
    architectures = content.get("architectures") or [] if isinstance(content, dict) else None
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise DataError(f"{config} does not describe a model; was it written by transformers?")
    if architectures and not any(name.endswith(_CAUSAL) for name in architectures):
        raise UnsupportedError(
            f"{path} is a {architectures[0]}, which is not a causal language model; inspect needs one such as "
            f"GPT-2 or Llama"
        )


def _check_config(config: Any, where: str) -> None:
    causal = any(name.endswith(_CAUSAL) for name in config.architectures or [])
    if config.is_encoder_decoder or not (causal or config.architectures is None):
        raise UnsupportedError(
            f"{where} is a {config.model_type} model, which is not a causal language model; inspect needs one such as "
            f"GPT-2 or Llama"
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
def quiet() -> Iterator[None]:
    """Silence the progress bars and length warnings of transformers while it loads and tokenizes."""
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

"""The tokenizer inside a GGUF file: byte-level BPE with the word patterns of GPT-2 and SmolLM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from keysift.core.errors import DataError, UnsupportedError
from keysift.data.bpe import BPE

_CONTROL, _ADDED = 3, 4  # kinds of tokens, as GGUF numbers them


def from_fields(fields: Mapping[str, Any], path: Path) -> BPE:
    """What `tokenizer.ggml.*` describes."""
    told = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    kind = (told.get("model"), told.get("pre"))
    if kind not in (("gpt2", "gpt-2"), ("gpt2", "smollm")):
        raise UnsupportedError(
            f"{path} has a tokenizer of the kind {kind[0]}, {kind[1]}; byte-level BPE as in gpt-2 and smollm is "
            f"understood. Give the model's tokenizer.json with --tokenizer"
        )
    try:
        tokens, kinds = told["tokens"], told["token_type"]
        merges = [tuple(pair.split(" ", 1)) for pair in told["merges"]]
        engine = Engine(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        special = [token for token, one in zip(tokens, kinds, strict=True) if one == _CONTROL]
        added = [token for token, one in zip(tokens, kinds, strict=True) if one == _ADDED]
        end, begin = tokens[told["eos_token_id"]], told.get("bos_token_id", 0)
    except Exception as error:  # the engine raises Exception itself
        raise DataError(f"{path} has no whole tokenizer ({error!r}); give one with --tokenizer") from error
    words: Any = pre_tokenizers.ByteLevel(add_prefix_space=bool(told.get("add_space_prefix")))
    if told["pre"] == "smollm":
        words = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    engine.pre_tokenizer = words
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    engine.add_tokens([AddedToken(token, normalized=False) for token in added])
    if told.get("add_bos_token"):
        first = tokens[begin]
        engine.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, begin)]
        )
    return BPE(engine, end=end, name=path.stem)

"""The tokenizer inside a GGUF file: byte-level BPE with the word patterns of GPT-2 and SmolLM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from keysift.core.errors import DataError, UnsupportedError
from keysift.data.tokenizers.bpe import BPE

_CONTROL, _ADDED = 3, 4  # kinds of tokens, as GGUF numbers them


def from_fields(fields: Mapping[str, Any], path: Path) -> BPE:
    """The tokenizer that the fields `tokenizer.ggml.*` describe."""
    settings = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    kind = (settings.get("model"), settings.get("pre"))
    if kind not in (("gpt2", "gpt-2"), ("gpt2", "smollm")):
        raise UnsupportedError(
            f"{path}: the tokenizer must be byte-level BPE as in gpt-2 or smollm, got model {kind[0]} with "
            f"pre-tokenizer {kind[1]}; give the model's tokenizer.json with --tokenizer"
        )
    try:
        tokens, kinds = settings["tokens"], settings["token_type"]
        merges = [tuple(pair.split(" ", 1)) for pair in settings["merges"]]
        engine = Engine(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        special = [token for token, kind_id in zip(tokens, kinds, strict=True) if kind_id == _CONTROL]
        added = [token for token, kind_id in zip(tokens, kinds, strict=True) if kind_id == _ADDED]
        end, begin = tokens[settings["eos_token_id"]], settings.get("bos_token_id", 0)
    except Exception as error:  # the engine raises Exception itself
        raise DataError(f"{path} has no complete tokenizer ({error!r}); give one with --tokenizer") from error
    words: Any = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_space_prefix")))
    if settings["pre"] == "smollm":
        words = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    engine.pre_tokenizer = words
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    engine.add_tokens([AddedToken(token, normalized=False) for token in added])
    if settings.get("add_bos_token"):
        first = tokens[begin]
        engine.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, begin)]
        )
    return BPE(engine, end=end, name=path.stem)

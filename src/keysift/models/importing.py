"""Import a pretrained model, from a Hugging Face directory or a GGUF file, into a directory for `keysift.open`.

    import_model(Path("SmolLM2-135M"), Path("models/smol"))

transformers is not needed, and no code of the source is executed. The new directory contains config.json,
model.safetensors, the tokenizer, and origin.json with the source and a hash of every file that was read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from keysift.core import memory
from keysift.core.disk import atomic_folder, write_json
from keysift.core.errors import DataError
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.load import load_tokenizer, save_tokenizer
from keysift.models.llama_config import DERIVED, Split, our_name, read_config, their_name
from keysift.models.model_type import CONFIG, GGUF, check_import_source, read_source_config
from keysift.models.save import meta_model_for, write_model
from keysift.models.tensor_files import INDEX, Shards, Tensors
from keysift.models.text_model import TextModel

ORIGIN = "origin.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Dtype = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class _Source:
    """Contents of a Hugging Face directory or a GGUF file."""

    config: Mapping[str, Any]
    tensors: Tensors
    tokenizer: Tokenizer
    files: tuple[Path, ...]


def import_model(source: Path, out: Path, *, dtype: Dtype = "fp32", tokenizer: Path | None = None) -> TextModel:
    """Write the model in `source` to the new directory `out`, and return it.

    dtype       dtype of the stored weights; fp32 is exact and fast on a CPU
    tokenizer   path of the tokenizer, if it is not in `source`
    """
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise DataError(f"{out} exists already; an imported model needs a new folder, choose another --out")
    contents = _read_gguf(source, tokenizer) if source.suffix == GGUF else _read_directory(source, tokenizer)
    where = str(source / CONFIG) if source.is_dir() else str(source)
    config = read_config(contents.config, where)
    tensors = Split(contents.tensors, config) if contents.config["model_type"] == "phi3" else contents.tensors
    header = {our_name(name): entry for name, entry in tensors.header.items() if not DERIVED.fullmatch(name)}
    if config.tied_embeddings:
        header.pop("lm_head.weight", None)
    model = meta_model_for(source, config, header, spelled=their_name)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    memory.require(
        2 * numbers * DTYPES[dtype].itemsize, f"{source} in {dtype}", "choose --dtype bf16, or a smaller model"
    )
    state = {name: tensors.read(their_name(name)).to(DTYPES[dtype]) for name in model.state_dict()}
    _check_tied_table(source, config.tied_embeddings, tensors, state)
    model.load_state_dict(state, assign=True)
    text_model = TextModel(model, contents.tokenizer)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as fresh:
        write_model(model, fresh)
        save_tokenizer(contents.tokenizer, fresh)
        hashes = {file.name: _sha256(file) for file in contents.files}
        write_json(fresh / ORIGIN, {"imported": source.name, "family": contents.config["model_type"], "sha256": hashes})
    return text_model


def _check_tied_table(source: Path, tied: bool, tensors: Tensors, state: Mapping[str, Tensor]) -> None:
    """Raise if a file contains the tied table twice with different values: one of them would be lost."""
    if tied and "lm_head.weight" in tensors.header:
        table = state["embedding.weight"]
        if not torch.equal(tensors.read("lm_head.weight").to(table.dtype), table):
            raise DataError(
                f"{source}: {CONFIG} sets tie_word_embeddings, but lm_head.weight differs from the embedding; "
                f"one of the two is wrong"
            )


def _read_directory(path: Path, tokenizer: Path | None) -> _Source:
    config = read_source_config(path)
    tensors = Shards(path)
    paths = (path / CONFIG, *sorted(path.glob("*.safetensors")), *path.glob(INDEX), *path.glob("tokenizer*.json"))
    files = tuple(file for file in paths if file.is_file())
    return _Source(config, tensors, _tokenizer(tokenizer or path), files)


def _tokenizer(path: Path) -> Tokenizer:
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        raise DataError(
            f"{path} has no tokenizer.json; write one with AutoTokenizer.from_pretrained(...).save_pretrained(...), "
            f"or give its path with --tokenizer"
        )
    return load_tokenizer(path)


def _read_gguf(path: Path, tokenizer: Path | None) -> _Source:
    from keysift.data.tokenizers.gguf import from_fields
    from keysift.models.gguf_file import File

    check_import_source(path)
    file = File(path)
    chosen = _tokenizer(tokenizer) if tokenizer is not None else from_fields(file.fields, path)
    return _Source(file.config, file, chosen, (path,))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Pretrained models of others become saved models here: a Hugging Face directory or a GGUF file in, a directory that
`keysift.open` reads out. transformers is not needed, and nothing of the source is executed.

imported(Path("SmolLM2-135M"), Path("models/smol"))

The new directory holds config.json, model.safetensors and the tokenizer as every saved model does, and origin.json:
what it was made of, with a hash of every file that was read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from keysift.core import jsons, memory
from keysift.core.disk import whole_folder
from keysift.core.errors import DataError
from keysift.data.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from keysift.models.foreign import GGUF, is_foreign, kind_named
from keysift.models.llama import DERIVED, our_name, read_config, their_name
from keysift.models.save import CONFIG, fitting, write_files
from keysift.models.tensor_files import INDEX, Shards, Tensors
from keysift.runs.directory import write_json
from keysift.runs.text_model import TextModel

ORIGIN = "origin.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Dtype = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class _Source:
    """What a directory or a file holds."""

    told: Mapping[str, Any]
    tensors: Tensors
    tokenizer: Tokenizer
    files: tuple[Path, ...]


def imported(source: Path, out: Path, *, dtype: Dtype = "fp32", tokenizer: Path | None = None) -> TextModel:
    """Write the model in `source` to the new directory `out`, and return it.

    dtype       what the weights are stored in; computing on a CPU is exact and fast in fp32
    tokenizer   where its tokenizer is, if not in `source`
    """
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise DataError(f"{out} exists already; an imported model needs a folder of its own, choose another --out")
    found = _gguf(source, tokenizer) if source.suffix == GGUF else _directory(source, tokenizer)
    where = str(source / CONFIG) if source.is_dir() else str(source)
    config = read_config(found.told, where)
    header = {our_name(name): entry for name, entry in found.tensors.header.items() if not DERIVED.fullmatch(name)}
    if config.tied_embeddings:
        header.pop("lm_head.weight", None)
    model = fitting(source, config, header, spelled=their_name)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    memory.need(2 * numbers * DTYPES[dtype].itemsize, f"{source} in {dtype}", "choose --dtype bf16, or a smaller model")
    state = {name: found.tensors.read(their_name(name)).to(DTYPES[dtype]) for name in model.state_dict()}
    _refuse_second_table(source, config.tied_embeddings, found.tensors, state)
    model.load_state_dict(state, assign=True)
    made = TextModel(model, found.tokenizer)
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as fresh:
        write_files(model, fresh)
        save_tokenizer(found.tokenizer, fresh)
        hashes = {file.name: _sha256(file) for file in found.files}
        write_json(fresh / ORIGIN, {"imported": source.name, "family": found.told["model_type"], "sha256": hashes})
    return made


def _refuse_second_table(source: Path, tied: bool, tensors: Tensors, state: Mapping[str, Tensor]) -> None:
    """Some files hold the tied table twice; a second one that differs would be lost."""
    if tied and "lm_head.weight" in tensors.header:
        table = state["embedding.weight"]
        if not torch.equal(tensors.read("lm_head.weight").to(table.dtype), table):
            raise DataError(
                f"{source}: {CONFIG} says tie_word_embeddings, and lm_head.weight differs from the embedding; "
                f"one of the two is wrong"
            )


def _directory(path: Path, tokenizer: Path | None) -> _Source:
    if not (path / CONFIG).is_file():
        raise DataError(f"{path} holds no {CONFIG}; give a Hugging Face directory or a .gguf file")
    try:
        told = jsons.loads((path / CONFIG).read_bytes())
    except ValueError as error:
        raise DataError(f"{path / CONFIG} is not JSON ({error}); was it cut short?") from error
    if not isinstance(told, dict) or not is_foreign(told):
        ours = kind_named(told) is not None
        why = "is a keysift model already; use it as it is" if ours else "does not say its model_type"
        raise DataError(f"{path / CONFIG} {why}")
    tensors = Shards(path)
    found = (path / CONFIG, *sorted(path.glob("*.safetensors")), *path.glob(INDEX), *path.glob("tokenizer*.json"))
    files = tuple(file for file in found if file.is_file())
    return _Source(told, tensors, _tokenizer(tokenizer or path), files)


def _tokenizer(path: Path) -> Tokenizer:
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        raise DataError(
            f"{path} holds no tokenizer.json; make one with AutoTokenizer.from_pretrained(...).save_pretrained(...), "
            f"or say where it is with --tokenizer"
        )
    return load_tokenizer(path)


def _gguf(path: Path, tokenizer: Path | None) -> _Source:
    from keysift.data.gguf_tokenizer import from_fields
    from keysift.models.gguf import File

    if not path.is_file():
        raise DataError(f"{path} is not a file; give a Hugging Face directory or a .gguf file")
    file = File(path)
    chosen = _tokenizer(tokenizer) if tokenizer is not None else from_fields(file.fields, path)
    return _Source(file.config, file, chosen, (path,))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

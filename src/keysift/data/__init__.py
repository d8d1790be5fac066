"""From text to training batches.

Reading order: sources (documents) -> tokenizers -> shards (tokenize once) -> corpus (open, verify, split) -> batches (a
shuffled order that resumes from a step number). tasks/ generates its own data.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keysift.data.batches import Batch as Batch
    from keysift.data.batches import Batches as Batches
    from keysift.data.corpus import Corpus as Corpus
    from keysift.data.corpus import open_corpus as open_corpus
    from keysift.data.documents import Document as Document
    from keysift.data.shards import build as build
    from keysift.data.shards import prepare as prepare
    from keysift.data.sources import find_source as find_source
    from keysift.data.tasks import abcdigits as abcdigits
    from keysift.data.tasks import mqar as mqar
    from keysift.data.tokenizers import bpe as bpe
    from keysift.data.tokenizers.base import Tokenizer as Tokenizer
    from keysift.data.tokenizers.bytes import Bytes as Bytes
    from keysift.data.tokenizers.load import load_tokenizer as load_tokenizer
    from keysift.data.tokenizers.load import save_tokenizer as save_tokenizer

_MENU = {
    "Batch": "batches",
    "Batches": "batches",
    "Bytes": "tokenizers.bytes",
    "Corpus": "corpus",
    "Document": "documents",
    "Tokenizer": "tokenizers.base",
    "build": "shards",
    "find_source": "sources",
    "load_tokenizer": "tokenizers.load",
    "open_corpus": "corpus",
    "prepare": "shards",
    "save_tokenizer": "tokenizers.load",
}
_MODULES = {"abcdigits": "tasks", "bpe": "tokenizers", "mqar": "tasks"}
__all__ = [*_MENU, *_MODULES]  # noqa: PLE0604


# Loaded on first use: processes that tokenize must not wait for torch.
def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"keysift.data.{_MODULES[name]}.{name}")
    if name not in _MENU:
        raise AttributeError(f"module 'keysift.data' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"keysift.data.{_MENU[name]}"), name)

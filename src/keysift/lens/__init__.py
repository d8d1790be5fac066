"""Attention diagnostics of a trained model: a keysift model or, through keysift.hub, a Hugging Face model.

    record = keysift.lens.inspect(model, ["Once upon a time ..."])

Reading order: model (the interface of a model) -> layer_view (one layer's attention, block by block) -> diagnostics
(numbers per row) -> head_statistics (means per head and context length) -> experiments (runs with changed attention or
input) -> inspection (`inspect`) -> findings (sentences). The record itself is in keysift.records.lens.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keysift.lens.experiments.patching import patch as patch
    from keysift.lens.inspection import inspect as inspect
    from keysift.lens.model import LensModel as LensModel
    from keysift.records.lens import Record as Record
    from keysift.records.lens import load as load

_MENU = {
    "inspect": "keysift.lens.inspection",
    "patch": "keysift.lens.experiments.patching",
    "Record": "keysift.records.lens",
    "load": "keysift.records.lens",
    "LensModel": "keysift.lens.model",
}
__all__ = [*_MENU]  # noqa: PLE0604


# Loaded when first used: a record is read without torch.
def __getattr__(name: str) -> Any:
    if name not in _MENU:
        raise AttributeError(f"module 'keysift.lens' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(_MENU[name]), name)

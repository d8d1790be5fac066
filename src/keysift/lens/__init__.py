"""What attention does in a trained model, in numbers: ours or, through keysift.hub, a Hugging Face model.

Reading order: record (plain data, no torch) -> reading (one layer's attention, block by block) -> rows, geometry,
sensitivity (diagnostics of a block) -> collect (means by layer, head and context length) -> examine (the whole).

    record = keysift.lens.inspect(subject, ["Once upon a time ..."])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keysift.lens.examine import inspect as inspect
    from keysift.lens.record import Record as Record
    from keysift.lens.record import load as load
    from keysift.lens.subject import Subject as Subject

_MENU = {"inspect": "examine", "Record": "record", "load": "record", "Subject": "subject"}
__all__ = [*_MENU]  # noqa: PLE0604


# Loaded when first used: a record is read without torch.
def __getattr__(name: str) -> Any:
    if name not in _MENU:
        raise AttributeError(f"module 'keysift.lens' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"keysift.lens.{_MENU[name]}"), name)

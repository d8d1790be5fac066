"""keysift: attention that can say no.

    import torch, keysift
    q = k = v = torch.randn(1, 2, 8, 16)
    out = keysift.attend("screening", q, k, v)
    keysift.weigh("softmax", [2.0, 1.0])

Names are loaded when first used, so `import keysift` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keysift import data as data
    from keysift import lens as lens
    from keysift.core.errors import KeysiftError as KeysiftError
    from keysift.kernels.attend import attend as attend
    from keysift.kernels.attend import explain as explain
    from keysift.kernels.positions import Positions as Positions
    from keysift.kernels.weigh import weigh as weigh
    from keysift.mechanisms.spec import MECHANISMS as MECHANISMS
    from keysift.mechanisms.spec import Mechanism as Mechanism
    from keysift.mechanisms.spec import Promise as Promise
    from keysift.mechanisms.spec import Scalar as Scalar
    from keysift.mechanisms.spec import register as register
    from keysift.models.generate import Request as Request
    from keysift.models.generate import generate as generate
    from keysift.models.multiscreen import Multiscreen as Multiscreen
    from keysift.models.multiscreen import MultiscreenConfig as MultiscreenConfig
    from keysift.models.sampling_settings import Sampling as Sampling
    from keysift.models.save import load as load
    from keysift.models.save import save as save
    from keysift.models.text_model import TextModel as TextModel
    from keysift.models.text_model import open as open
    from keysift.models.transformer import Transformer as Transformer
    from keysift.models.transformer import TransformerConfig as TransformerConfig
    from keysift.nn.inference import Inference as Inference
    from keysift.nn.tap import edit as edit
    from keysift.nn.tap import trace as trace

__version__ = "0.1.0"

_PARTS = ("data", "lens")
_MENU = {
    "attend": "keysift.kernels.attend",
    "explain": "keysift.kernels.attend",
    "Positions": "keysift.kernels.positions",
    "weigh": "keysift.kernels.weigh",
    "MECHANISMS": "keysift.mechanisms",
    "register": "keysift.mechanisms",
    "Mechanism": "keysift.mechanisms.spec",
    "Promise": "keysift.mechanisms.spec",
    "Scalar": "keysift.mechanisms.spec",
    "KeysiftError": "keysift.core.errors",
    "Multiscreen": "keysift.models.multiscreen",
    "MultiscreenConfig": "keysift.models.multiscreen",
    "Transformer": "keysift.models.transformer",
    "TransformerConfig": "keysift.models.transformer",
    "Inference": "keysift.nn.inference",
    "generate": "keysift.models.generate",
    "Request": "keysift.models.generate",
    "Sampling": "keysift.models.sampling_settings",
    "save": "keysift.models.save",
    "load": "keysift.models.save",
    "open": "keysift.models.text_model",
    "TextModel": "keysift.models.text_model",
    "trace": "keysift.nn.tap",
    "edit": "keysift.nn.tap",
}
# `from keysift import *` must not replace the built-in open.
__all__ = ["__version__", *(name for name in _MENU if name != "open"), *_PARTS]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"keysift.{name}")
    if name not in _MENU:
        raise AttributeError(f"module 'keysift' has no attribute {name!r}; it offers {', '.join(__all__)}")
    # Kept here, so that Python does not call this function again for the name.
    value = globals()[name] = getattr(import_module(_MENU[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, "open"))

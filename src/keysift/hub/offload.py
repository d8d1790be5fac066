"""Parameters that accelerate keeps on the CPU or on disk until the module that holds them is called.

keysift reads some parameters outside such a call: the table and the scalars of a tied embedding for the readout, and
the windows of all tiles for a cache.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn


@contextmanager
def offloaded_parameters(*modules: nn.Module) -> Iterator[None]:
    """Load the own parameters of these modules inside the `with` block, unless they are loaded already.

    Do not call one of the modules inside the block: accelerate offloads its parameters again after the call.
    """
    offloaded = [module for module in modules if _is_offloaded(module)]
    if not offloaded:
        yield
        return
    from accelerate.utils import align_module_device

    with ExitStack() as loaded:
        for module in offloaded:
            loaded.enter_context(align_module_device(module))
        yield


def _is_offloaded(module: nn.Module) -> bool:
    return hasattr(module, "_hf_hook") and any(parameter.is_meta for parameter in module.parameters(recurse=False))

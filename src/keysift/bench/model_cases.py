"""Models that benchmarks time: untrained Multiscreens, and a Transformer of the same size."""

import torch

from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.models.matching import match_width
from keysift.models.registry import build, configure
from keysift.nn.inference import Inference

VOCABULARY = 257
TRAINED_ON = 4096  # tokens; a window wider than the training length counts as infinite at inference
INFINITE_SHARE = 0.094  # of the tiles, in the paper's trained model
SLIDING_WINDOW = 256  # of the Transformer with windows
EXPANDED = Inference(expand_windows=TRAINED_ON)


def multiscreen(psi: int, *, infinite: float = 0.0, accept: float | None = None) -> LanguageModel:
    """An untrained Multiscreen in which a share `infinite` of the tiles has a window longer than any text.

    The infinite tiles are the widest of their layers, spread over the layers. `accept` sets all acceptances.
    """
    arch = MultiscreenArch.psi(psi)
    config = configure(arch, vocab_size=VOCABULARY, context=TRAINED_ON)
    model = build(config, torch.Generator().manual_seed(0)).eval()
    wanted = round(infinite * arch.depth * arch.tiles)
    with torch.no_grad():
        for number in range(wanted):
            layer, back = number % arch.depth, number // arch.depth
            model.get_parameter(f"layers.{layer}.tiles.scalars.s_w")[-1 - back] = 30.0  # a window of e^30 tokens
        for name, parameter in model.named_parameters():
            if accept is not None and name.endswith("s_r"):
                parameter.fill_(torch.logit(torch.tensor(accept)))
    return model


def open_multiscreen(psi: int) -> LanguageModel:
    """A Multiscreen whose tiles accept many keys and write to the residual stream.

    At the paper's initialization almost every relevance is zero and the tiles are nearly closed. Agreement would
    compare zeros, and a kernel that skips rejected keys would be timed on no work.
    """
    model = multiscreen(psi, accept=0.92)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("s_O"):
                parameter.fill_(2.5)
            elif parameter.ndim >= 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
    return model


def matching_transformer(other: LanguageModel, *, window: int = 0) -> LanguageModel:
    """A Transformer with the depth and heads of the paper's smallest, at the width that matches `other` in size.

    With a window, every layer attends to that many keys; 0 is none.
    """
    arch = TransformerArch(depth=6, heads=4, width=8, window=window)
    arch = match_width(arch, count_parameters(other), vocab_size=VOCABULARY, context=TRAINED_ON)
    config = configure(arch, vocab_size=VOCABULARY, context=TRAINED_ON)
    return build(config, torch.Generator().manual_seed(0)).eval()

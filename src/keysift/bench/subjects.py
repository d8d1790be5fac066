"""Models to be timed: Multiscreen as initialised and with infinite tiles, and the Transformer of its size."""

import torch

from keysift.models.arch import MultiscreenArch, TransformerArch
from keysift.models.kinds import build, configure, empty
from keysift.models.language import LanguageModel, count
from keysift.nn.inference import Inference

VOCABULARY = 257
TRAINED_ON = 4096  # tokens; a window wider than the training length counts as infinite at inference
INFINITE_SHARE = 0.094  # of the tiles, in the paper's trained model
EXPANDED = Inference(expand_windows=TRAINED_ON)


def multiscreen(psi: int, *, infinite: float = 0.0, accept: float | None = None) -> LanguageModel:
    """As initialised, but for a share of the tiles whose window passes any text, and an acceptance if one is given.

    The infinite tiles are the widest of their layers, one a layer as long as that suffices.
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
    """A Multiscreen whose tiles accept many keys and write into the stream.

    At the paper's start almost every relevance is zero and the tiles are nearly closed: agreement would compare zeros,
    and a kernel that skips what is refused would be timed on nothing.
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


def transformer_like(other: LanguageModel) -> LanguageModel:
    """Six layers of four heads, as the paper's smallest, at the width whose parameters come nearest."""
    sizes = [TransformerArch(depth=6, heads=4, width=width) for width in range(16, 513, 8)]
    configs = [configure(arch, vocab_size=VOCABULARY, context=TRAINED_ON) for arch in sizes]
    nearest = min(configs, key=lambda config: abs(count(empty(config)) - count(other)))
    return build(nearest, torch.Generator().manual_seed(0)).eval()

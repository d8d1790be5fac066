"""Models to be timed."""

import torch

from keysift.models.multiscreen import Multiscreen, MultiscreenConfig

VOCABULARY = 257


def open_multiscreen(psi: int) -> Multiscreen:
    """A Multiscreen whose tiles accept many keys and write into the stream.

    At the paper's start almost every relevance is zero and the tiles are nearly closed: agreement would compare zeros,
    and a kernel that skips what is refused would be timed on nothing.
    """
    generator = torch.Generator().manual_seed(0)
    model = Multiscreen(MultiscreenConfig.psi(psi, vocab_size=VOCABULARY), generator).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("s_r", "s_O")):
                parameter.fill_(2.5)
            elif parameter.ndim >= 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
    return model

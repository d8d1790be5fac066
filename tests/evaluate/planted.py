"""A Multiscreen with hand-written weights that solves one-hop recall exactly, at any length."""

import torch

from keysift.data.tasks.recall import Recall
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig


def retriever(task: Recall) -> Multiscreen:
    """One tile with the letter as query and key and the value as value. Pairs of other letters have cosine 0."""
    letters, values = task.letters, task.values
    width = letters + values
    model = Multiscreen(
        MultiscreenConfig(
            vocab_size=task.tokenizer.vocab_size,
            context=task.length,
            depth=1,
            tiles=1,
            width=width,
            key_width=letters,
            value_width=values,
            position="none",
            gate=False,
        )
    )
    letter, value = torch.eye(width)[:letters], torch.eye(width)[letters:]
    pairs = (letter[:, None] + value).flatten(0, 1)
    tiles = model.layers[0].tiles
    with torch.no_grad():
        model.embedding.weight[: len(pairs) + width] = torch.cat([pairs, letter, value])
        tiles.q_proj.weight.copy_(letter)
        tiles.k_proj.weight.copy_(letter)
        tiles.v_proj.weight.copy_(value)
        tiles.o_proj.weight.copy_(value.T * 10)
        tiles.scalars.s_w.fill_(20.0)
        tiles.scalars.s_r.fill_(-2.0)
    return model.eval()

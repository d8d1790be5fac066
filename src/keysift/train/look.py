"""What a model has learned so far: validation loss, each head's scalars and share of accepted keys, a sample."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from keysift.data.batches import IGNORE, Batch, Batches
from keysift.data.tokenizer import Tokenizer
from keysift.models.generate import generate
from keysift.models.language import LanguageModel
from keysift.models.sample import Sampling
from keysift.nn.inference import Inference
from keysift.nn.scalars import Scalars
from keysift.nn.tap import trace
from keysift.train.distributed import Shared

LOOKED_AT = 512


def summed_loss(model: torch.nn.Module, batch: Batch) -> Tensor:
    """Nats over all targets; dividing by their number is the caller's, who knows the whole batch."""
    documents = {} if batch.segments is None else {"documents": batch.segments}
    logits_BTN = model(batch.inputs, **documents)
    return F.cross_entropy(
        logits_BTN.float().flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def targets(batch: Batch) -> int:
    return int((batch.targets != IGNORE).sum())


@torch.no_grad()
def validation_loss(shared: Shared, batches: Batches, sequences: int, precision: AbstractContextManager[Any]) -> float:
    """Nats for each token. The sequences are the same each time, dealt out to the processes."""
    world = shared.world
    turns = -(-min(sequences, batches.sequences) // batches.batch_size)
    total = count = 0.0
    shared.model.eval()
    for start in range(0, turns, world.size):
        # Every process runs every turn: sharded weights are gathered by all or by none.
        number = start + world.rank
        batch = batches.batch(number).to(world.device)
        with precision:
            loss = float(summed_loss(shared.model, batch))
        if number < turns:
            total, count = total + loss, count + targets(batch)
    shared.model.train()
    total, count = world.sum(total, count)
    return total / count


@contextmanager
def averaged(shared: Shared, ema: dict[str, Tensor]) -> Iterator[None]:
    """The model with its averaged weights, if there are any, for the time of the block."""
    held = {name: shared.parameters[name].detach().clone() for name in ema}
    shared.set(ema)
    try:
        yield
    finally:
        shared.set(held)


@torch.no_grad()
def heads(model: LanguageModel, tokens_1T: Tensor) -> list[dict[str, Any]]:
    """For each layer: its stored scalars (window and acceptance of screening) and the share of keys each head uses, on
    at most `LOOKED_AT` tokens: weights are formed for this, a layer at a time."""
    tokens_1T = tokens_1T[:, :LOOKED_AT]
    visible = tokens_1T.shape[1] * (tokens_1T.shape[1] + 1) / 2
    with trace(model, "layers.*.relevance", keeping=lambda weights: (weights[0] != 0).flatten(1).sum(1)) as used:
        model(tokens_1T)
    found = []
    for layer, used_H in zip(model.layers, used.values(), strict=True):
        scalars = cast(Scalars, layer.scalars)
        learned = {scalar.name for scalar in scalars.mechanism.scalars if scalar.learned}
        stored = {name: value for name, value in scalars.stored(Inference()).items() if name in learned}
        accepted_H = used_H / visible
        found.append({**{name: value.tolist() for name, value in stored.items()}, "accepted": accepted_H.tolist()})
    return found


def sample(model: LanguageModel, tokenizer: Tokenizer, prompt: str, length: int) -> str:
    """The prompt and what the model adds to it; the same model writes the same."""
    ids = tokenizer.encode(prompt) or [tokenizer.end_id]
    made = generate(
        model,
        [ids],
        max_tokens=length,
        sampling=Sampling(temperature=0.7, seed=0),
        end_id=tokenizer.end_id,
        decode=tokenizer.decode,
    )
    return prompt + (made.rows[0].text or "")

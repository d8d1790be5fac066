"""What if: the same model, with its own scores weighed by another mechanism."""

from dataclasses import replace

from torch import Tensor

from keysift.core.errors import UnsupportedError
from keysift.kernels import call as calls
from keysift.lens.reading import Reading
from keysift.mechanisms import find
from keysift.mechanisms.spec import Mechanism, Site


def swapped(reading: Reading, name: str) -> Reading:
    """The same q, k, v and visibility under another rule, whose scalars take their initial values."""
    call, new = reading.call, find(name)
    _check(call.mechanism, new)
    # How q and k become scores stays the model's own; only what is made of the scores changes.
    own = {scalar.name for scalar in call.mechanism.scalars}
    mixed = replace(
        call.mechanism,
        name=new.name,
        rule=new.rule,
        holds=new.holds,
        band=None,
        scalars=(*call.mechanism.scalars, *(scalar for scalar in new.scalars if scalar.name not in own)),
    )
    sizes = {"B": call.q.shape[0], "H": call.heads, "G": call.v.shape[1], "T": call.q.shape[2], "S": call.k.shape[2]}
    site = Site(heads=call.heads, key_width=call.q.shape[3], value_width=call.v.shape[3], context=call.k.shape[2])
    scalars = calls.align(
        new, {}, site, sizes | {"V": call.v.shape[3]}, carry=calls.carrier(call.q), device=call.q.device
    )
    return replace(reading, call=replace(call, mechanism=mixed, scalars={**scalars, **call.scalars}))


def _check(old: Mechanism, new: Mechanism) -> None:
    reason = None
    if new.maps != old.maps:
        reason = f"it compares {new.maps} maps of scores and this model has {old.maps}"
    elif new.cosine_scores and not old.cosine_scores:
        reason = "it reads cosines and this model's scores are logits"
    elif any(scalar.per.projected for scalar in new.scalars):
        reason = "it computes a number from each token with weights this model does not have"
    elif new.prepare or new.finish:
        reason = "it changes more than the weighing of scores"
    if reason is not None and new.name != old.name:
        raise UnsupportedError(
            f"{new.name} cannot weigh this model's scores: {reason}; try entmax15, ssmax or relu_exp"
        )


def output(reading: Reading) -> Tensor:
    return reading.output(lambda block: block.weights_HTS)

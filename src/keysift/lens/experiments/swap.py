"""Run a model with another mechanism on its own scores, without retraining."""

from dataclasses import replace

from keysift.core.errors import UnsupportedError
from keysift.kernels.scalars import accumulation_dtype, align_scalars
from keysift.lens.layer_view import LayerView
from keysift.mechanisms import find
from keysift.mechanisms.spec import Mechanism, Site


def swap_mechanism(view: LayerView, name: str) -> LayerView:
    """The same q, k, v and mask with another mechanism, whose scalars have their initial values."""
    call, new = view.call, find(name)
    _check(call.mechanism, new)
    # The model still computes the scores; only the rule that turns scores into weights changes.
    names = {scalar.name for scalar in call.mechanism.scalars}
    mechanism = replace(
        call.mechanism,
        name=new.name,
        rule=new.rule,
        holds=new.holds,
        window_scalar=None,
        own_key=new.own_key,
        causal_only=new.causal_only,
        scalars=(*call.mechanism.scalars, *(scalar for scalar in new.scalars if scalar.name not in names)),
    )
    sizes = {"B": call.q.shape[0], "H": call.heads, "G": call.v.shape[1], "T": call.q.shape[2], "S": call.k.shape[2]}
    site = Site(heads=call.heads, key_width=call.q.shape[3], value_width=call.v.shape[3], context=call.k.shape[2])
    scalars = align_scalars(
        new, {}, site, sizes | {"V": call.v.shape[3]}, dtype=accumulation_dtype(call.q), device=call.q.device
    )
    return replace(view, call=replace(call, mechanism=mechanism, scalars={**scalars, **call.scalars}))


def _check(old: Mechanism, new: Mechanism) -> None:
    """Raise UnsupportedError if `new` needs more than the scores of a model trained with `old`."""
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

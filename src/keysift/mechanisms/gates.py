"""Gates around any mechanism: another way to say "nothing here" (arXiv:2505.06708v1).

    output gate        u_t = g_t * o_t     g a sigmoid of the query's token: silences a query, in the limit
    output head gate   the same with one number for each head instead of one for each channel
    value gate         v_s <- g_s * v_s    g a sigmoid of the key's token: silences a key for every query alike

The weights stay what they were. Wrap by name: "softmax+output_gate", "screening+value_gate".
Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

from dataclasses import replace

from torch import Tensor

from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, sigmoid

_SOURCE = "arXiv:2505.06708v1"
_HULLS = frozenset({Promise.CONVEX_HULL, Promise.HULL_WITH_ZERO})


def _gate(name: str, meaning: str, per: Per) -> Scalar:
    return Scalar(
        name=name,
        meaning=meaning,
        per=per,
        link=sigmoid,
        above=0.0,
        above_allowed=True,
        up_to=1.0,
        probes=(1e-6, 0.5, 1.0),
    )


def _gate_output(out_BHTV: Tensor, *, output_gate: Tensor) -> Tensor:
    return output_gate * out_BHTV


def _gate_head(out_BHTV: Tensor, *, output_head_gate: Tensor) -> Tensor:
    return output_head_gate * out_BHTV


def _gate_values(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, at: Tensor, key_at: Tensor, *, value_gate: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return q_BHTK, k_BHSK, value_gate * v_BHSV


def _wrap(inner: Mechanism, gate: Scalar, title: str, formula: str, holds: frozenset[Promise]) -> Mechanism:
    return replace(
        inner,
        name=f"{inner.name}+{gate.name}",
        title=f"{inner.title} with {title}",
        source=f"{inner.source}; gate: {_SOURCE}",
        page="gates",
        formula=f"{inner.formula}; {formula}",
        scalars=(*inner.scalars, gate),
        holds=holds,
        # A note explains a verdict; where the gate changed the verdict the inner note no longer does.
        notes={
            promise: note for promise, note in inner.notes.items() if (promise in inner.holds) == (promise in holds)
        },
    )


def output_gate(inner: Mechanism) -> Mechanism:
    """One gate for each query, head and channel."""
    gate = _gate("output_gate", "how much of each output channel a query lets through", Per.QUERY_CHANNEL)
    holds = (inner.holds - _HULLS) | {Promise.REFUSES_IN_LIMIT}
    wrapped = _wrap(inner, gate, "an output gate", "output times a gate per channel", holds)
    return replace(wrapped, finish=(*inner.finish, _gate_output))


def output_head_gate(inner: Mechanism) -> Mechanism:
    """One gate for each query and head: shrinking towards zero keeps the output in the hull of the values and zero."""
    gate = _gate("output_head_gate", "how much of a head's output a query lets through", Per.QUERY)
    holds = (inner.holds - {Promise.CONVEX_HULL}) | {Promise.REFUSES_IN_LIMIT}
    wrapped = _wrap(inner, gate, "an output gate per head", "output times a gate per head", holds)
    return replace(wrapped, finish=(*inner.finish, _gate_head))


def value_gate(inner: Mechanism) -> Mechanism:
    """One gate for each key and channel, the same for all queries."""
    gate = _gate("value_gate", "how much of each value channel a key gives", Per.KEY_CHANNEL)
    # Also with a norm after the sum: its eps wins once the gates have made the values small enough.
    holds = (inner.holds - _HULLS) | {Promise.REFUSES_IN_LIMIT}
    wrapped = _wrap(inner, gate, "a value gate", "values times a gate per key", holds)
    return replace(wrapped, prepare=(*inner.prepare, _gate_values))

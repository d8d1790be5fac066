"""Output gates, value gates (arXiv:2505.06708v1) and an output norm (arXiv:2503.02130v2) for any mechanism.

    output gate        u_t = g_t * o_t     g is a sigmoid of the query's token; it can silence a query in the limit
    output head gate   the same with one gate per head instead of one per channel
    value gate         v_s <- g_s * v_s    g is a sigmoid of the key's token; it can silence a key for all queries
    output norm        u_t = gain * o_t / RMS(o_t)    over the channels of a head, which has a gain for each of them

The weights do not change. A name with a wrapper applies it: "softmax+output_gate", "screening+value_gate". Wrappers
apply from left to right: "forgetting+output_norm+output_gate" norms the output and then gates it.
Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

from dataclasses import replace

from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.spec import Constant, Mechanism, Per, Promise, Scalar, sigmoid

_SOURCE = "gate: arXiv:2505.06708v1"
_NORM_EPS = 1e-6
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


def _norm_output(out_BHTV: Tensor, *, norm_gain: Tensor) -> Tensor:
    return norm_gain * parts.rms_norm(out_BHTV, (-1,), _NORM_EPS)


def _wrap(
    inner: Mechanism,
    name: str,
    scalar: Scalar,
    title: str,
    formula: str,
    holds: frozenset[Promise],
    source: str = _SOURCE,
) -> Mechanism:
    return replace(
        inner,
        name=f"{inner.name}+{name}",
        title=f"{inner.title} with {title}",
        source=f"{inner.source}; {source}",
        page="gates",
        formula=f"{inner.formula}; {formula}",
        scalars=(*inner.scalars, scalar),
        holds=holds,
        # A note explains whether a promise holds, so drop it where the gate changes that.
        notes={
            promise: note for promise, note in inner.notes.items() if (promise in inner.holds) == (promise in holds)
        },
    )


def output_gate(inner: Mechanism) -> Mechanism:
    """Wrap a mechanism with a gate for each query, head and channel."""
    gate = _gate("output_gate", "factor of each output channel of a query", Per.QUERY_CHANNEL)
    holds = (inner.holds - _HULLS) | {Promise.REFUSES_IN_LIMIT}
    wrapped = _wrap(inner, gate.name, gate, "an output gate", "output times a gate per channel", holds)
    return replace(wrapped, finish=(*inner.finish, _gate_output))


def output_head_gate(inner: Mechanism) -> Mechanism:
    """Wrap a mechanism with a gate for each query and head. The output stays in the hull of the values and zero."""
    gate = _gate("output_head_gate", "factor of a head's output for a query", Per.QUERY)
    holds = (inner.holds - {Promise.CONVEX_HULL}) | {Promise.REFUSES_IN_LIMIT}
    wrapped = _wrap(inner, gate.name, gate, "an output gate per head", "output times a gate per head", holds)
    return replace(wrapped, finish=(*inner.finish, _gate_head))


def value_gate(inner: Mechanism) -> Mechanism:
    """Wrap a mechanism with a gate for each key and channel, the same for all queries."""
    gate = _gate("value_gate", "factor of each value channel of a key", Per.KEY_CHANNEL)
    # This holds with a norm after the sum too: its eps dominates when the gates make the values small enough.
    holds = (inner.holds - _HULLS) | {Promise.REFUSES_IN_LIMIT}
    wrapped = _wrap(inner, gate.name, gate, "a value gate", "values times a gate per key", holds)
    return replace(wrapped, prepare=(*inner.prepare, _gate_values))


def output_norm(inner: Mechanism) -> Mechanism:
    """Wrap a mechanism with an RMSNorm of each head's output. Outputs far below its eps stay small."""
    gain = Scalar(
        name="norm_gain",
        meaning="the gain of each head and channel of the output norm",
        per=Per.HEAD_CHANNEL,
        init=Constant(1.0),
        probes=(1.0,),
    )
    source = "norm: arXiv:2503.02130v2"
    wrapped = _wrap(inner, "output_norm", gain, "an output norm", "RMSNorm of the output", inner.holds - _HULLS, source)
    return replace(wrapped, finish=(*inner.finish, _norm_output))

"""The mechanisms: dense, differentiable definitions, one file per family. Importing this package registers them.

To add a mechanism, write its file, register it here, and add a page in docs/mechanisms/. The property tests, the
command line and the tables follow from its spec.
"""

from keysift.mechanisms import gates
from keysift.mechanisms.difference import (
    HEAVISIDE_CONSTANT,
    HEAVISIDE_LITERAL,
    heaviside_gate,
    rectified_difference,
)
from keysift.mechanisms.differential import DIFFERENTIAL_V1, DIFFERENTIAL_V2
from keysift.mechanisms.entmax import ALPHA_ENTMAX, ASENTMAX, ENTMAX15, SPARSEMAX
from keysift.mechanisms.forgetting import FORGETTING
from keysift.mechanisms.lookup import find
from keysift.mechanisms.minus_constant import (
    CLIPPED_SOFTMAX,
    ELASTIC_SOFTMAX,
    SOFTMAX_MINUS_CONSTANT,
    SOFTMAX_MINUS_UNIFORM,
)
from keysift.mechanisms.relu_exp import RELU_EXP, RELU_EXP_NORMALISED, SOFTPICK
from keysift.mechanisms.relu_power import RELA, RELU, RELU_SQUARED, RELU_VISIBLE
from keysift.mechanisms.screening import SCREENING
from keysift.mechanisms.sigmoid import SIGMOID, SIGMOID_VISIBLE
from keysift.mechanisms.sink import NULL_VALUE, SOFTMAX1, SOFTMAX_SINK
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import MECHANISMS, WRAPPERS, register
from keysift.mechanisms.stick_breaking import (
    STICK_BREAKING,
    STICK_BREAKING_LEARNED,
    STICK_BREAKING_OWN_KEY,
    STICK_BREAKING_REST,
)
from keysift.mechanisms.temperature import SELECTIVE_TEMPERATURE, SSMAX
from keysift.mechanisms.threshold import LSSAR, TDA, TRA

for _wrapper in (gates.output_gate, gates.output_head_gate, gates.value_gate, gates.output_norm):
    WRAPPERS.add(_wrapper.__name__, _wrapper)

register(SOFTMAX)
register(SCREENING)
register(DIFFERENTIAL_V1)
register(DIFFERENTIAL_V2)
register(rectified_difference())
register(rectified_difference("min"))
register(HEAVISIDE_LITERAL)
register(HEAVISIDE_CONSTANT)
register(heaviside_gate())
register(heaviside_gate(renormalise=True))
register(SOFTMAX_MINUS_CONSTANT)
register(SOFTMAX_MINUS_UNIFORM)
register(ELASTIC_SOFTMAX)
register(CLIPPED_SOFTMAX)
register(RELU_EXP)
register(RELU_EXP_NORMALISED)
register(SOFTPICK)
register(SPARSEMAX)
register(ENTMAX15)
register(ALPHA_ENTMAX)
register(ASENTMAX)
register(SOFTMAX1)
register(SOFTMAX_SINK)
register(NULL_VALUE)
register(SIGMOID)
register(SIGMOID_VISIBLE)
register(RELU)
register(RELU_SQUARED)
register(RELU_VISIBLE)
register(RELA)
register(TRA)
register(TDA)
register(LSSAR)
register(SSMAX)
register(SELECTIVE_TEMPERATURE)
register(FORGETTING)
register(STICK_BREAKING)
register(STICK_BREAKING_OWN_KEY)
register(STICK_BREAKING_REST)
register(STICK_BREAKING_LEARNED)
register(gates.output_gate(SOFTMAX))
register(gates.output_head_gate(SOFTMAX))
register(gates.value_gate(SOFTMAX))
register(gates.output_norm(SOFTMAX))

# tests/mechanisms/test_promises.py checks every promise of these mechanisms, stated or not.
TESTED = frozenset(MECHANISMS.names())

__all__ = ["MECHANISMS", "TESTED", "WRAPPERS", "find", "register"]

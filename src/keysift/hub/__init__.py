"""Hugging Face: the only place that knows `transformers` (extra [hub]).

    import keysift.hub
    model = AutoModelForCausalLM.from_pretrained("runs/first")         a keysift model, there
    model = AutoModelForCausalLM.from_pretrained("gpt2-like", attn_implementation="keysift_entmax15")

Importing it makes keysift's models and mechanisms known to transformers.
"""

from keysift.core.errors import UnsupportedError

try:
    import transformers as transformers
except ImportError as _missing:
    raise UnsupportedError(
        "Hugging Face models need the extra [hub]; install it with pip install 'keysift[hub]'"
    ) from _missing

from keysift.hub.attention import register
from keysift.hub.cache import WindowCache
from keysift.hub.configuration import MultiscreenConfig, TransformerConfig
from keysift.hub.modeling import MultiscreenForCausalLM, TransformerForCausalLM
from keysift.mechanisms.lookup import everything

for _model in (MultiscreenForCausalLM, TransformerForCausalLM):
    transformers.AutoConfig.register(_model.config_class.model_type, _model.config_class)
    transformers.AutoModelForCausalLM.register(_model.config_class, _model)
for _mechanism in everything():
    register(_mechanism.name)

__all__ = [
    "MultiscreenConfig",
    "MultiscreenForCausalLM",
    "TransformerConfig",
    "TransformerForCausalLM",
    "WindowCache",
    "register",
]

"""Integration with Hugging Face transformers (extra [hub]); no other package imports `transformers`.

    import keysift.hub
    model = AutoModelForCausalLM.from_pretrained("runs/first")         # a keysift run
    model = AutoModelForCausalLM.from_pretrained("gpt2-like", attn_implementation="keysift_entmax15")

Importing keysift.hub registers keysift's models and mechanisms with transformers.
"""

from keysift.core.errors import UnsupportedError

try:
    import transformers as transformers
except ImportError as _missing:
    raise UnsupportedError(
        "Hugging Face models need the extra [hub]; install it with pip install 'keysift[hub]'"
    ) from _missing

from keysift.hub.attention import SELECTIVE, register
from keysift.hub.cache import WindowCache
from keysift.hub.models import (
    MultiscreenConfig,
    MultiscreenForCausalLM,
    MultiscreenModel,
    TransformerConfig,
    TransformerForCausalLM,
    TransformerModel,
)
from keysift.mechanisms.lookup import all_mechanisms

for _model in (MultiscreenForCausalLM, TransformerForCausalLM):
    transformers.AutoConfig.register(_model.config_class.model_type, _model.config_class)
    transformers.AutoModel.register(_model.config_class, _model.backbone_class)
    transformers.AutoModelForCausalLM.register(_model.config_class, _model)
for _name in (*(mechanism.name for mechanism in all_mechanisms()), SELECTIVE):
    register(_name)

__all__ = [
    "MultiscreenConfig",
    "MultiscreenForCausalLM",
    "MultiscreenModel",
    "TransformerConfig",
    "TransformerForCausalLM",
    "TransformerModel",
    "WindowCache",
    "register",
]

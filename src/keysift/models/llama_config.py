"""Read config.json and weight names of Llama, Mistral, Qwen2, Qwen3, SmolLM3 and Phi-3 as those of a Transformer.

Every field must be understood or known not to affect the logits; any other field raises UnsupportedError. A missing
field has the default of transformers.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from keysift.core.errors import DataError, UnsupportedError
from keysift.models.model_type import FAMILIES
from keysift.models.tensor_files import Entry, Tensors
from keysift.models.transformer import TransformerConfig

# Fields that do not affect the logits.
_INERT = frozenset(
    {
        *("architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "_name_or_path"),
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "is_llama_config"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "initializer_range", "pretraining_tp"),
        *("max_window_layers", "_attn_implementation_autoset", "attention_dropout", "transformers.js_config"),
        *("resid_pdrop", "embd_pdrop"),
    }
)
_ORIGINAL = "original_max_position_embeddings"
_ROPE_TABLES = ("rope_scaling", "rope_parameters")
_SLIDING, _FULL = "sliding_attention", "full_attention"
_MOST_LAYERS = 10_000  # a damaged file may claim any depth
_NUMBER, _MAX = (int, float), 1e300  # JSON integers have any length, and JSON parsers accept NaN and Infinity
_EXPECTED: dict[type | tuple[type, ...], str] = {
    int: "an integer",
    bool: "a boolean",
    str: "a string",
    dict: "an object",
    _NUMBER: "a finite number",
}
# For each type of RoPE scaling, our parameter names and the fields of config.json.
_SCALINGS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {"factor": "factor", "low": "low_freq_factor", "high": "high_freq_factor", "original": _ORIGINAL},
    "yarn": {"factor": "factor", "original": _ORIGINAL, "fast": "beta_fast", "slow": "beta_slow"},
}
_NAMES = {
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_PARTS = {
    "self_attn": "attention",
    "mlp": "mlp",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
}
_LAYER = re.compile(r"model\.layers\.([0-9]+)\.([a-z_]+)\.(.+)")
# Old checkpoints store RoPE's frequencies with the weights, although they follow from the config.
DERIVED = re.compile(r"model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq")


def our_name(theirs: str) -> str:
    """Our name of a weight. An unknown name is returned as it is, so that an error can show it."""
    if theirs in _NAMES:
        return _NAMES[theirs]
    match = _LAYER.fullmatch(theirs)
    return f"layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}" if match and match[2] in _PARTS else theirs


def their_name(ours: str) -> str:
    """Their name of a weight, from ours."""
    for theirs, name in _NAMES.items():
        if name == ours:
            return theirs
    match = re.fullmatch(r"layers\.([0-9]+)\.([a-z_]+)\.(.+)", ours)
    parts = {name: theirs for theirs, name in _PARTS.items()}
    return f"model.layers.{match[1]}.{parts[match[2]]}.{match[3]}" if match and match[2] in parts else ours


class Split:
    """The tensors of a Phi-3 model under the names of Llama: its q, k and v are one tensor, and so are gate and up."""

    def __init__(self, tensors: Tensors, config: TransformerConfig) -> None:
        self._tensors = tensors
        head, keys = config.resolved_head_width, config.key_heads or config.heads
        rows = {"q": config.heads * head, "k": keys * head, "v": keys * head}
        inner = config.resolved_hidden_width
        self.header: dict[str, Entry] = {}
        self._rows: dict[str, tuple[str, slice]] = {}
        for name, entry in tensors.header.items():
            parts = rows if ".qkv_proj." in name else {"gate": inner, "up": inner} if ".gate_up_proj." in name else None
            if parts is None or entry.shape[:1] != (sum(parts.values()),):  # a wrong shape is reported under its name
                self.header[name] = entry
                continue
            start = 0
            for part, count in parts.items():
                ours = re.sub(r"\.(qkv|gate_up)_proj\.", f".{part}_proj.", name)
                self.header[ours] = Entry((count, *entry.shape[1:]), entry.dtype)
                self._rows[ours] = name, slice(start, start := start + count)

    def read(self, name: str) -> Tensor:
        """Load a tensor."""
        if name not in self._rows:
            return self._tensors.read(name)
        joined, rows = self._rows[name]
        return self._tensors.read(joined)[rows].clone()


class Fields:
    """The fields of a config.json, removed as they are read. Fields left at the end were not understood."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.left = dict(config)
        self.where = where

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Remove and return a field. A missing or null field has its default; without a default, raise DataError."""
        value = self.left.pop(name, None)
        if value is None:
            value = default
        if value is None:
            raise DataError(f"{self.where} has no {name}; is it the complete config.json of the model?")
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        if wrong or (kind is _NUMBER and not abs(value) < _MAX):
            raise DataError(f"{self.where}: {name} must be {_EXPECTED[kind]}, got {value!r}; use the published file")
        return value

    def only(self, name: str, allowed: Any, why: str) -> None:
        """Remove a field. Raise UnsupportedError if it is set to anything but `allowed`."""
        value = self.left.pop(name, None)
        if value is not None and value != allowed:
            raise UnsupportedError(f"{self.where}: {name} is {value!r}, and {why}")

    def none_left(self) -> None:
        """Raise UnsupportedError if fields are left that may affect the logits."""
        unknown = sorted(set(self.left) - _INERT)
        if unknown:
            raise UnsupportedError(
                f"{self.where}: {', '.join(f'{name} = {self.left[name]!r}' for name in unknown)} "
                f"{'is' if len(unknown) == 1 else 'are'} not understood, and ignoring it would change the model"
            )


def read_config(data: Mapping[str, Any], where: str) -> TransformerConfig:
    """The Transformer that a config.json of these families describes. `where` names the file in errors."""
    family = data.get("model_type")
    experts = sorted(name for name in data if "expert" in name)
    if experts:
        raise UnsupportedError(
            f"{where} describes a {family} model with a mixture of experts ({experts[0]} = {data[experts[0]]!r}); "
            f"keysift import reads dense models only"
        )
    if family not in FAMILIES:
        raise UnsupportedError(f"{where} describes a {family} model; keysift import reads {', '.join(FAMILIES)}")
    fields = Fields(data, where)
    heads = fields.take("num_attention_heads", int)
    width = fields.take("hidden_size", int)
    context = fields.take("max_position_embeddings", int)
    fields.only("hidden_act", "silu", "only silu is supported")
    fields.only("mlp_bias", False, "biases of the MLP are not supported")
    fields.only("rope_interleaved", False, "interleaved channels are not supported")
    biased = {"qwen2": "qkv"}.get(family, "none")
    if family in ("llama", "qwen3", "smollm3") and fields.take("attention_bias", bool, False):
        biased = "qkvo"
    depth = fields.take("num_hidden_layers", int)
    share = 1.0 if family != "phi3" else _rotated_share(fields)
    theta, scaling = _rope(fields, context, default=2_000_000.0 if family == "smollm3" else 10_000.0)
    rotated = _rotated_layers(fields, depth) if family == "smollm3" else ()
    head = fields.take("head_dim", int, 128 if family == "qwen3" else 0)
    sizes = {
        "vocab_size": fields.take("vocab_size", int),
        "depth": depth,
        "heads": heads,
        "width": width,
        "key_heads": fields.take("num_key_value_heads", int, heads if family in ("llama", "phi3") else None),
        "hidden_width": fields.take("intermediate_size", int),
        "head_width": head or None,
        "norm_eps": float(fields.take("rms_norm_eps", _NUMBER, 1e-5 if family == "phi3" else 1e-6)),
        "tied_embeddings": fields.take("tie_word_embeddings", bool, family == "smollm3"),
        "window": _windows(fields, family, depth, rotated),
        "position": tuple("rope" if turned else "none" for turned in rotated) or "rope",
        "rope_share": share,
    }
    fields.none_left()
    return TransformerConfig(
        **sizes,
        context=context,
        attention_bias=biased,  # type: ignore[arg-type]
        qk_norm=family == "qwen3",
        final_gain=True,
        rope_theta=theta,
        rope_rates=scaling,
    )


def _rotated_share(fields: Fields) -> float:
    """Share of the channels that Phi-3 rotates. transformers 4 stores it beside the RoPE parameters."""
    fields.left.pop(_ORIGINAL, None)  # used by longrope, which is refused
    outside = fields.left.pop("partial_rotary_factor", None)
    inside = [
        table["partial_rotary_factor"]
        for name in _ROPE_TABLES
        if isinstance(table := fields.left.get(name), dict) and table.get("partial_rotary_factor") is not None
    ]
    for name in _ROPE_TABLES:
        if isinstance(table := fields.left.get(name), dict):
            fields.left[name] = {key: value for key, value in table.items() if key != "partial_rotary_factor"}
    given = Fields({"partial_rotary_factor": inside[0] if inside else outside}, f"{fields.where}: RoPE")
    return float(given.take("partial_rotary_factor", _NUMBER, 1.0))


def _rotated_layers(fields: Fields, depth: int) -> tuple[bool, ...]:
    """For each layer of SmolLM3, whether it has RoPE. By default every fourth has none."""
    interval = fields.take("no_rope_layer_interval", int, 4)
    if interval < 1:
        raise DataError(f"{fields.where}: no_rope_layer_interval must be at least 1, got {interval}")
    layers = range(min(depth, _MOST_LAYERS))
    given = fields.left.pop("no_rope_layers", None)
    flags = [int((layer + 1) % interval != 0) for layer in layers] if given is None else given
    if not isinstance(flags, list) or len(flags) != len(layers) or any(flag not in (0, 1) for flag in flags):
        raise DataError(f"{fields.where}: no_rope_layers must list 0 or 1 for each of {depth} layers, got {flags!r}")
    return tuple(bool(flag) for flag in flags)


def _windows(fields: Fields, family: str, depth: int, rotated: tuple[bool, ...]) -> int | tuple[int, ...]:
    """Window of all layers or of each, 0 for none.

    Mistral and Phi-3 have it in every layer, Qwen and SmolLM3 where layer_types says so.
    """
    everywhere = family in ("mistral", "phi3")
    used = everywhere or (family != "llama" and fields.take("use_sliding_window", bool, False))
    window = fields.take("sliding_window", int, 0)
    if not used:
        if window and family == "llama":
            raise UnsupportedError(f"{fields.where}: sliding_window is {window}, and a llama model has none")
        window = 0
    layers = range(min(depth, _MOST_LAYERS))
    first = fields.take("max_window_layers", int, 28) if used and family.startswith("qwen") else 0
    windowed = [bool(window) and layer >= first and not (rotated and rotated[layer]) for layer in layers]
    default = [_SLIDING if inside else _FULL for inside in windowed]
    kinds = fields.left.pop("layer_types", None) or default
    if not isinstance(kinds, list) or not {_SLIDING, _FULL} >= set(map(str, kinds)) or len(kinds) != len(default):
        raise UnsupportedError(
            f"{fields.where}: layer_types is {kinds!r}; supported are lists of {_FULL} and {_SLIDING}, one a layer"
        )
    if _SLIDING in kinds and not window:
        raise DataError(f"{fields.where}: layer_types names {_SLIDING}, and sliding_window is missing or not in use")
    if everywhere and _FULL in kinds and window:
        raise UnsupportedError(
            f"{fields.where}: a {family} model has its window in every layer, got layer_types {kinds!r}"
        )
    windows = tuple(window if kind == _SLIDING else 0 for kind in kinds)
    return windows[0] if len(set(windows)) == 1 else windows


def _rope(fields: Fields, context: int, default: float) -> tuple[float, str]:
    """theta, and the scaling in the form of nn/rope_scaling.py. transformers 4 stores them in separate fields."""
    rope = {"rope_theta": fields.left.pop("rope_theta", None)}
    for table in _ROPE_TABLES:
        for theirs, value in fields.take(table, dict, {}).items():
            if value is None:  # null means missing, as in all of config.json
                continue
            name = "rope_type" if theirs == "type" else theirs
            if rope.get(name, value) not in (None, value):
                raise DataError(
                    f"{fields.where} sets {name} twice, to {rope[name]!r} and {value!r}; keep the correct value"
                )
            rope[name] = value
    inner = Fields(rope, f"{fields.where}: RoPE")
    theta = float(inner.take("rope_theta", _NUMBER, default))
    inner.only("partial_rotary_factor", 1.0, "rotating only some channels is not supported")
    kind = inner.take("rope_type", str, "default")
    if kind not in _SCALINGS:
        raise UnsupportedError(f"{inner.where} scaling is of type {kind!r}; supported are {', '.join(_SCALINGS)}")
    defaults = {_ORIGINAL: context, "beta_fast": 32.0, "beta_slow": 1.0}
    values = {ours: inner.take(theirs, _NUMBER, defaults.get(theirs)) for ours, theirs in _SCALINGS[kind].items()}
    if kind == "yarn":
        if inner.left.get("attention_factor") is not None:
            values["attention"] = inner.take("attention_factor", _NUMBER)
        values["whole"] = int(inner.take("truncate", bool, True))
    inner.left.pop(_ORIGINAL, None)  # not every type of scaling uses it
    inner.none_left()
    spelled = ",".join(f"{name}={value}" for name, value in values.items())
    return theta, f"{kind}:{spelled}" if values else "none"

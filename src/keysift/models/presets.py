"""The sizes of the paper and the parameter counts of the models they build (arXiv:2604.01178v3, tables 2 and 3)."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from keysift.core.registry import Registry
from keysift.models.language import LanguageModel, count
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig

VOCABULARY = 50_257


@dataclass(frozen=True, kw_only=True)
class Preset:
    name: str
    about: str
    config: Any
    build: type[LanguageModel]

    def model(self, generator: torch.Generator | None = None) -> LanguageModel:
        return self.build(self.config, generator)

    def counts(self) -> tuple[int, int]:
        """All parameters, and those outside the embedding table; built without memory, so any size is instant."""
        total = _parameters(self)
        return total, total - self.config.vocab_size * self.config.width


@cache
def _parameters(preset: Preset) -> int:
    with torch.device("meta"):
        return count(preset.model())


PRESETS: Registry[Preset] = Registry("preset")


def _multiscreen(psi: int) -> None:
    config = MultiscreenConfig.psi(psi, vocab_size=VOCABULARY)
    name = f"multiscreen-psi{psi}"
    PRESETS.add(name, Preset(name=name, about=f"Multiscreen, psi = {psi}", config=config, build=Multiscreen))


def _transformer(name: str, depth: int, heads: int, width: int, **rest: Any) -> None:
    config = TransformerConfig(vocab_size=VOCABULARY, depth=depth, heads=heads, width=width, **rest)
    about = "Transformer baseline" + (" of version 1" if rest else "")
    PRESETS.add(name, Preset(name=name, about=about, config=config, build=Transformer))


for _psi in (8, 16, 32, 48, 64):
    _multiscreen(_psi)
PRESETS.add(
    "multiscreen-28m-no-gate",
    Preset(
        name="multiscreen-28m-no-gate",
        about="Multiscreen, ablation without the gate",
        config=MultiscreenConfig(vocab_size=VOCABULARY, depth=19, tiles=19, width=256, gate=False),
        build=Multiscreen,
    ),
)
_transformer("transformer-8m", 6, 4, 128)
_transformer("transformer-45m", 6, 8, 512)
_transformer("transformer-353m", 24, 16, 1024)
_transformer("transformer-1.3b", 24, 16, 2048)
_transformer("transformer-18m", 6, 8, 256, init="version1")
_transformer("transformer-124m", 12, 12, 768, init="version1")


def rows() -> list[dict[str, Any]]:
    """One record for each preset."""
    found = []
    for preset in PRESETS:
        total, outside = preset.counts()
        config = preset.config
        heads = config.tiles if isinstance(config, MultiscreenConfig) else config.heads
        found.append(
            {
                "name": preset.name,
                "about": preset.about,
                "layers": config.depth,
                "heads": heads,
                "width": config.width,
                "parameters": total,
                "non_embedding": outside,
            }
        )
    return found


def markdown() -> str:
    """The table of docs/models.md."""
    lines = [
        "| preset | layers | tiles or heads | width | parameters | without embedding |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows():
        lines.append(
            f"| {row['name']} | {row['layers']} | {row['heads']} | {row['width']} "
            f"| {row['parameters']:,} | {row['non_embedding']:,} |"
        )
    return "\n".join(lines) + "\n"

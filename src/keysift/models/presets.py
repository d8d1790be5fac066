"""Presets: the model sizes of the paper, with their parameter counts (arXiv:2604.01178v3, tables 2 and 3).

Their names and sizes are free of torch; building a model imports it.
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from keysift.core.markdown import table_head, table_row
from keysift.core.registry import Registry
from keysift.models.architecture import Arch, MultiscreenArch, TransformerArch

if TYPE_CHECKING:
    import torch

    from keysift.models.language_model import LanguageModel
    from keysift.models.registry import ModelConfig

VOCABULARY, CONTEXT = 50_257, 4096


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model of the paper, with the vocabulary of GPT-2."""

    name: str
    about: str
    arch: Arch

    @property
    def config(self) -> "ModelConfig":
        from keysift.models.registry import configure

        return configure(self.arch, vocab_size=VOCABULARY, context=CONTEXT)

    def model(self, generator: "torch.Generator | None" = None) -> "LanguageModel":
        from keysift.models.registry import build

        return build(self.config, generator)

    def counts(self) -> tuple[int, int]:
        """Number of parameters, in total and without the embedding table. Allocates no memory."""
        total = _parameters(self)
        return total, total - VOCABULARY * self.arch.width


@cache
def _parameters(preset: Preset) -> int:
    from keysift.models.language_model import count_parameters
    from keysift.models.registry import build_meta

    return count_parameters(build_meta(preset.config))


PRESETS: Registry[Preset] = Registry("preset")


def _add(name: str, about: str, arch: Arch) -> None:
    PRESETS.add(name, Preset(name=name, about=about, arch=arch))


for _psi in (8, 16, 32, 48, 64):
    _add(f"multiscreen-psi{_psi}", f"Multiscreen, psi = {_psi}", MultiscreenArch.psi(_psi))
_add(
    "multiscreen-28m-no-gate",
    "Multiscreen, ablation without the gate",
    MultiscreenArch(depth=19, tiles=19, width=256, gate=False),
)
for _name, _depth, _heads, _width in (
    ("transformer-8m", 6, 4, 128),
    ("transformer-45m", 6, 8, 512),
    ("transformer-353m", 24, 16, 1024),
    ("transformer-1.3b", 24, 16, 2048),
):
    _add(_name, "Transformer baseline", TransformerArch(depth=_depth, heads=_heads, width=_width))
for _name, _depth, _heads, _width in (("transformer-18m", 6, 8, 256), ("transformer-124m", 12, 12, 768)):
    _arch = TransformerArch(depth=_depth, heads=_heads, width=_width, initial_std="version1")
    _add(_name, "Transformer baseline of version 1", _arch)


def rows() -> list[dict[str, Any]]:
    """A dict for each preset."""
    table = []
    for preset in PRESETS:
        total, outside = preset.counts()
        arch = preset.arch
        heads = arch.tiles if isinstance(arch, MultiscreenArch) else arch.heads
        table.append(
            {
                "name": preset.name,
                "about": preset.about,
                "layers": arch.depth,
                "heads": heads,
                "width": arch.width,
                "parameters": total,
                "non_embedding": outside,
            }
        )
    return table


def markdown() -> str:
    """The table of presets in docs/models.md."""
    lines = table_head("preset", "layers", "tiles or heads", "width", "parameters", "without embedding")
    for row in rows():
        sizes = (str(row[size]) for size in ("layers", "heads", "width"))
        lines.append(table_row(row["name"], *sizes, f"{row['parameters']:,}", f"{row['non_embedding']:,}"))
    return "\n".join(lines) + "\n"

"""Record of an inspection: JSON with a format name and a version, read and written without torch.

    {"format": "keysift-lens", "version": 2, "model": {...}, "texts": [...], "lengths": [[1, 1], [2, 3], ...],
     "heads": [...], "tests": {...}, "swaps": [...], "findings": [{...}], "maps": [{...}], "made": {...}}

docs/lens-reference.md lists every field. A number that is undefined for a head is null. Version 1 had sentences as
findings and no maps; it is read without its findings.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from keysift.core import safe_json
from keysift.core.disk import write_atomic
from keysift.core.errors import DataError
from keysift.core.notebook import Shown
from keysift.records.lens_maps import TextMaps

FORMAT, VERSION = "keysift-lens", 2
STORY = 5  # findings that open a report
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Name, architecture and size of the inspected model."""

    name: str
    kind: str  # "keysift" or "huggingface"
    family: str  # multiscreen, transformer, llama, gpt2, ...
    mechanisms: tuple[str, ...]  # one per layer
    heads: tuple[int, ...]  # number of heads per layer
    context: int | None  # maximum number of tokens
    parameters: int
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Text:
    name: str
    tokens: int
    loss: float  # nats per token
    bits_per_byte: float | None = None  # of the text that was read; None if not every token is scored
    beginning: str = ""  # first characters of the text that was read


@dataclass(frozen=True, kw_only=True)
class Head:
    """One head's diagnostics: means over every row, and over the rows of each context bucket."""

    layer: int
    head: int
    kinds: tuple[str, ...]
    values: Mapping[str, float | None]
    by_length: Mapping[str, tuple[float | None, ...]]

    @property
    def address(self) -> str:
        return f"layers.{self.layer}.heads.{self.head}"

    @property
    def label(self) -> str:
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A query and one of its keys in a text, with their tokens."""

    layer: int
    head: int
    text: int  # number of the text in the record
    query: int
    key: int
    query_token: str
    key_token: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One statement about a model: what was measured, what it means and what to try next."""

    topic: str
    sentence: str
    meaning: str = ""
    action: str = ""
    heads: tuple[tuple[int, int], ...] = ()  # layer and head, the most telling first
    pairs: tuple[Pair, ...] = ()
    weight: float = 0.0  # importance; the story of a record consists of the largest


@dataclass(frozen=True, kw_only=True)
class Record(Shown):
    """What an inspection measured. `record.show()` opens its page; a notebook shows its maps."""

    PAGE: ClassVar[str] = "keysift.web.inspect.page"

    model: ModelInfo
    texts: tuple[Text, ...]
    lengths: tuple[tuple[int, int], ...]  # the context buckets: visible keys from .. to
    heads: tuple[Head, ...]
    tests: Mapping[str, Any] = field(default_factory=dict)
    swaps: tuple[Mapping[str, Any], ...] = ()
    findings: tuple[Finding, ...] = ()
    maps: tuple[TextMaps, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **plain(self)}

    @property
    def story(self) -> tuple[Finding, ...]:
        """The findings to read first: three to five, the most important first."""
        ordered = sorted(self.findings, key=lambda finding: -finding.weight)
        return tuple(finding for finding in ordered if finding.weight > 0)[:STORY]

    def save(self, path: Path | str) -> None:
        write_atomic(Path(path), json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False) + "\n")

    def with_findings(self, findings: tuple[Finding, ...], **made: Any) -> "Record":
        """A copy with findings and further provenance."""
        return replace(self, findings=findings, made={**self.made, **made})

    def head(self, layer: int, head: int) -> Head:
        return next(entry for entry in self.heads if (entry.layer, entry.head) == (layer, head))


def plain(value: Any) -> Any:
    """Convert to JSON types. Floats get five significant digits; NaN and inf become null."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if is_dataclass(value):
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def load(path: Path | str) -> Record:
    return from_json(_read_json(path), str(path))


def load_all(path: Path | str) -> list[Record]:
    """Load a file with one record, or with the list that `keysift compare --json` prints."""
    data = _read_json(path)
    return [from_json(entry, str(path)) for entry in (data if isinstance(data, list) else [data])]


def _read_json(path: Path | str) -> Any:
    try:
        return safe_json.load(Path(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a lens record ({error}); write one with keysift inspect --json") from error


def from_json(data: Any, name: str = "the record") -> Record:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DataError(f'{name} is not a lens record; it must say "format": "{FORMAT}"')
    if data.get("version") == 1:
        data = {**data, "findings": [], "maps": []}
    elif data.get("version") != VERSION:
        raise DataError(f"{name} has version {data.get('version')!r}, this keysift reads 1 to {VERSION}; inspect again")
    try:
        return Record(
            model=_read(ModelInfo, data["model"]),
            texts=tuple(_text(text) for text in data["texts"]),
            lengths=tuple((int(low), int(high)) for low, high in data["lengths"]),
            heads=tuple(_head(head) for head in data["heads"]),
            tests=data["tests"],
            swaps=tuple(data["swaps"]),
            findings=tuple(_finding(finding) for finding in data["findings"]),
            maps=tuple(TextMaps.from_json(maps) for maps in data["maps"]),
            made=data["made"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{name} is not a complete lens record ({error!r}); inspect again") from error


def _read(cls: type[R], data: Mapping[str, Any]) -> R:
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key in known}
    )


def _text(data: Mapping[str, Any]) -> Text:
    # JSON has no NaN: the loss of a text without scored tokens is null.
    return _read(Text, {**data, "loss": math.nan if data["loss"] is None else data["loss"]})


def _finding(data: Mapping[str, Any]) -> Finding:
    finding = _read(Finding, data)
    return replace(
        finding,
        heads=tuple((int(layer), int(head)) for layer, head in finding.heads),
        pairs=tuple(_read(Pair, pair) for pair in data["pairs"]),
    )


def _head(data: Mapping[str, Any]) -> Head:
    head = _read(Head, data)
    return replace(head, by_length={name: tuple(row) for name, row in head.by_length.items()})

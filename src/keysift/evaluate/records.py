"""Records of `keysift eval` read back from JSON, each as what its format says it is. Free of torch."""

from pathlib import Path
from typing import Any, cast

from keysift.core import jsons
from keysift.core.config import from_dict
from keysift.core.errors import ConfigError, DataError
from keysift.evaluate.measured import LossByPosition, Relevance, Retrieval, TextLoss, Windows

Record = Retrieval | LossByPosition | TextLoss | Windows | Relevance
FORMATS: dict[str, type[Any]] = {
    "keysift-retrieval": Retrieval,
    "keysift-loss": TextLoss,
    "keysift-positions": LossByPosition,
    "keysift-windows": Windows,
    "keysift-maps": Relevance,
}


def read_record(path: Path) -> Record:
    try:
        told = jsons.loads(path.read_bytes())
        return cast(Record, from_dict(FORMATS[told["format"]], told))
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        said = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is no record of keysift eval ({said}); measure again") from error


def read_records(folder: Path) -> tuple[list[Record], list[str]]:
    """Every record in a folder, and a line for each file that is none."""
    found, refused = [], []
    for path in sorted(path for path in folder.glob("*.json") if path.is_file()):
        try:
            found.append(read_record(path))
        except DataError as error:
            refused.append(str(error))
    return found, refused

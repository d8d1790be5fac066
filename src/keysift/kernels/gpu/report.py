"""Compile every configuration of the Triton kernels for several devices, and record what the binaries contain.

python -m keysift.kernels.gpu.report make docs/results/gpu.json       compiles what the record lacks; needs triton
python -m keysift.kernels.gpu.report show docs/results/gpu.json       prints the record as a Markdown table
python -m keysift.kernels.gpu.report roofline docs/results/gpu.json   prints predicted times as a Markdown table
"""

import ast
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from keysift.core import disk, safe_json
from keysift.core.markdown import table_head, table_row
from keysift.kernels.gpu import roofline

Row = dict[str, Any]
_KEYS = ("device", "kernel", "dtype", "widths")
_FOLDER = Path(__file__).parent


def source_digest() -> str:
    """Digest of the code that decides the binaries: kernels and configurations, without comments and formatting."""
    digest = hashlib.sha256()
    for path in (*sorted((_FOLDER / "device_code").glob("*.py")), _FOLDER / "configurations.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
                del node.body[0]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


def read(path: Path) -> list[Row]:
    """Rows of the record that were made from the present sources."""
    record: dict[str, Any] = safe_json.loads(path.read_text()) if path.exists() else {}
    return list(record["rows"]) if record.get("source") == source_digest() else []


def make(path: Path, devices: list[str]) -> None:
    """Compile every configuration for these devices, or all, and add what is missing to the record."""
    import torch
    import triton

    from keysift.kernels.gpu import binaries
    from keysift.kernels.gpu.configurations import WIDTHS

    rows = read(path)
    known = {tuple(row[key] for key in _KEYS) for row in rows}
    for name in devices or list(binaries.TARGETS):
        target = binaries.TARGETS[name]
        for dtype in (torch.bfloat16, torch.float32):
            for pads in WIDTHS:
                for kernel, launch in binaries.launches(dtype, *pads, target.precision).items():
                    key = (name, kernel, str(dtype).removeprefix("torch."), "{} {}".format(*pads))
                    if key in known:
                        continue
                    binary = binaries.examine(binaries.compile_launch(launch, target), target)
                    assert launch.config is not None, "launched with its configuration"
                    row = {**dict(zip(_KEYS, key, strict=True)), **launch.config._asdict(), **binary._asdict()}
                    rows.append(row)
                    record = {"source": source_digest(), "triton": triton.__version__, "rows": rows}
                    disk.write_atomic(path, json.dumps(record, indent=1) + "\n")
                    sys.stdout.write(f"{row}\n")


def show(path: Path) -> str:
    """The record as a Markdown table, one row per kernel, dtype and widths, one column per device."""
    rows: list[Row] = safe_json.loads(path.read_text())["rows"]
    devices = list(dict.fromkeys(row["device"] for row in rows))
    cells = {tuple(row[key] for key in _KEYS): row for row in rows}
    lines = table_head("kernel", "dtype", "widths", "block", *devices)
    for kernel, dtype, widths in dict.fromkeys((row["kernel"], row["dtype"], row["widths"]) for row in rows):
        found = [cells.get((device, kernel, dtype, widths)) for device in devices]
        block = _block(next(row for row in found if row is not None))
        lines.append(table_row(kernel, dtype, widths.replace(" ", ", "), block, *(_cell(row, block) for row in found)))
    return "\n".join(lines)


def _block(row: Row) -> str:
    return f"{row['queries']} x {row['keys']}, {row['warps']} warps"


def _cell(row: Row | None, block: str) -> str:
    if row is None:
        return "not compiled"
    own = "" if _block(row) == block else f"{_block(row)}: "
    spilled = f", **{row['local_bytes']} spilled**" if row["local_bytes"] else ""
    shared = f"{row['shared_bytes'] / 1024:.0f} KB"
    return f"{own}{row['registers']} reg{spilled}, {shared}, {row['matrix']} of {row['instructions']}"


def main(arguments: list[str]) -> None:
    match arguments:
        case ["make", path, *devices]:
            make(Path(path), devices)
        case ["show", path]:
            sys.stdout.write(show(Path(path)) + "\n")
        case ["roofline", path]:
            sys.stdout.write(roofline.show(Path(path)) + "\n")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Changes to a directory that an accident or an attacker could cause."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

ESCAPES = "\x1b[31mred\x1b]0;title\x07"
HOSTILE = [ESCAPES, "[/red]", "[bold]", "\0", "\u202egnp.exe", "../../outside", "a" * 5000, "é\n\r\t"]
PLANTED = [".metadata", "numpy.py", "random.py", "json.py", "step-00000020.bak", "\x1b[2J.txt", "[red].txt"]
NUMBERS = [0, -1, 10**9, 10**18, 2**63, -(2**64), 1e308, float("nan"), float("inf"), 0.5, True, None]


def mutate(folder: Path, rng: random.Random, payloads: list[bytes]) -> str:
    """Change one file in `folder`. Returns a description of the change."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    file = rng.choice(files)
    kind = rng.random()
    if kind < 0.1:
        return _plant(file, rng, payloads)
    if kind < 0.2:
        file.write_bytes(rng.choice(payloads))
        return f"{file.name} replaced by a payload"
    return rng.choice([_flip, _cut, _empty, _json, _json, _json, _remove, _replace_by_kind])(file, rng)


def _flip(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 8, 64])):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    file.write_bytes(bytes(data))
    return f"{file.name} with flipped bytes"


def _cut(file: Path, rng: random.Random) -> str:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data) + 1)])
    return f"{file.name} cut short"


def _empty(file: Path, rng: random.Random) -> str:
    file.write_bytes(b"")
    return f"{file.name} emptied"


def _remove(file: Path, rng: random.Random) -> str:
    file.unlink()
    return f"{file.name} removed"


def _replace_by_kind(file: Path, rng: random.Random) -> str:
    """Replace the file by a folder, a link or a pipe of the same name."""
    kind = rng.choice(["folder", "loop", "dangling", "link to nothing", "pipe"])
    if kind == "pipe":
        return replace_by_pipe(file)
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file.parent)
    elif kind == "dangling":
        file.symlink_to("nowhere")
    else:
        file.symlink_to(os.devnull)
    return f"{file.name} replaced by a {kind}"


def replace_by_pipe(file: Path) -> str:
    file.unlink()
    os.mkfifo(file)
    return f"{file.name} turned into a pipe"


def _plant(file: Path, rng: random.Random, payloads: list[bytes]) -> str:
    """Add a file: metadata that a reader might unpickle, or a module that an import might find."""
    name = rng.choice(PLANTED)
    file.with_name(name).write_bytes(rng.choice(payloads))
    return f"{name!r} planted"


def _json(file: Path, rng: random.Random) -> str:
    """Change a value of a JSON file, or replace the whole document."""
    if file.suffix == ".toml":
        return _toml(file, rng)
    if rng.random() < 0.2:
        documents = ["[]", "null", "7", '"text"', "{}", "[" * 100_000, '{"a":' * 50_000, "{", "NaN"]
        file.write_text(rng.choice(documents))
        return f"{file.name} replaced by another document"
    try:
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.suffix == ".jsonl" else None
        data = lines if lines is not None else json.loads(file.read_text())
    except (ValueError, UnicodeDecodeError):
        return _flip(file, rng)
    setters: list[Callable[[Any], None]] = []
    _collect_setters(data, setters)
    if setters:
        rng.choice(setters)(rng.choice([*NUMBERS, *HOSTILE, [], {}, [[]]]))
    file.write_text("\n".join(json.dumps(line) for line in data) if lines is not None else json.dumps(data))
    return f"{file.name} with another value"


def _toml(file: Path, rng: random.Random) -> str:
    """Change the value of one setting."""
    lines = file.read_text().splitlines()
    line = rng.randrange(len(lines))
    values = [json.dumps(value) for value in [*NUMBERS, *HOSTILE, [], {}] if value is not None]
    lines[line] = (
        f"{lines[line].split('=')[0]} = {rng.choice([*values, '[' * 100_000, '9' * 5000, 'nan', '1979-05-27'])}"
    )
    file.write_text("\n".join(lines))
    return f"{file.name} with another setting"


def _collect_setters(data: Any, setters: list[Callable[[Any], None]]) -> None:
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(inside)[:50]:
        setters.append(lambda new, key=key: data.__setitem__(key, new))  # type: ignore[misc]
        _collect_setters(value, setters)


def copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, symlinks=True))

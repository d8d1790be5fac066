"""Texts of `--text`: files, folders, globs and sources as for `--data`, - for standard input, or the text itself."""

import glob
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from keysift.cli.flags.command_line import decode_argument
from keysift.core.errors import DataError
from keysift.core.terminal import escape_line
from keysift.data.paths import IN_FOLDERS
from keysift.records.lens import Text

_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}$")


def read_texts(arguments: tuple[str, ...]) -> dict[str, str]:
    """Texts by name: the name of each document, "standard input", or "text N" for a text given as an argument."""
    texts: dict[str, str] = {}
    for number, argument in enumerate(arguments, 1):
        documents = dict(_read(argument, f"text {number}"))
        for name, text in documents.items():
            if not text.strip():
                raise DataError(f"{name} is empty; give a text of at least 2 tokens")
        if not documents:
            raise DataError(f"{argument} is empty; give a text of at least 2 tokens")
        texts |= documents
    return texts


def describe_text(text: Text) -> str:
    """A line about a text that was read: its name, tokens, loss and first words."""
    loss = f"loss {text.loss:.3f} nats per token" if math.isfinite(text.loss) else "no token has a loss"
    bits = "" if text.bits_per_byte is None else f", {text.bits_per_byte:.3f} bits per byte"
    beginning = f', "{text.beginning}..."' if text.beginning else ""
    return escape_line(f"{text.name}: {text.tokens} tokens, {loss}{bits}{beginning}")


def _read(argument: str, name: str) -> Iterator[tuple[str, str]]:
    if argument == "-":
        yield "standard input", _standard_input()
    elif _names_documents(argument):
        from keysift.cli.terminal import output
        from keysift.data.sources import find_source
        from keysift.evaluate.texts import whole_documents

        source = find_source(argument)
        for note in source.notes:
            output.print_note(note)
        yield from whole_documents(source)
    elif _looks_like_path(argument):
        raise DataError(
            f"{argument!r} looks like a path, but no such file or folder exists; correct it, or pipe the text itself "
            f"to --text -"
        )
    else:
        yield name, decode_argument(argument)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not UTF-8 text ({error}); convert it first") from error


def _names_documents(argument: str) -> bool:
    """Whether the argument is an existing file or folder, a glob that matches one, or the name of a source."""
    from keysift.data.sources import SOURCES

    try:
        path = Path(argument).expanduser()
        if path.exists():  # a pipe or a device too: reading it is refused
            return True
    except (OSError, RuntimeError):  # too long for a file name; ~ of an unknown user
        return False
    if re.search(r"\s", argument):
        return False
    matches_file = glob.has_magic(argument) and next(glob.iglob(str(path), recursive=True), None) is not None
    return matches_file or argument.partition(":")[0] in SOURCES


def _looks_like_path(argument: str) -> bool:
    if "\n" in argument:
        return False
    if re.search(r"\s", argument):
        return Path(argument).suffix.lower() in (*IN_FOLDERS, ".gz")
    return "/" in argument or argument.startswith("~") or _SUFFIX.search(argument) is not None

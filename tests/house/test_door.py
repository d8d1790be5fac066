"""Text reaches a terminal by one door (core/shown.py): nothing else makes a console, a styled text or writes to one."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src" / "keysift"
FILES = sorted(SOURCE.rglob("*.py"))
DOOR = "core/shown.py"
# Raw on purpose: each writes something that is no text of a stranger, or does so through the door.
WRITERS = {
    "core/live.py": "a line through the door, where there is no terminal",
    "cli/output.py": "what a model wrote, through the door on a terminal and as bytes elsewhere",
    "sweep/child.py": "an error through the door, to the log of a run",
    "lens/claims.py": "a page of the documentation, through the door",
    "lens/terms.py": "a page of the documentation",
    "lens/beside.py": "a page of the documentation, through the door",
    "lens/excerpt.py": "JSON, in which nothing is raw",
    "data/workers.py": "arrays to the parent process",
    "bench/child.py": "JSON to the parent process",
}
MAKERS = {"Console", "Text", "TextColumn", "from_markup", "from_ansi", "escape_markup", "out", "log", "print_exception"}
RAW = re.compile(r"sys\.(__)?std(out|err)(__)?\.(write|writelines|buffer)")
MARKUP = re.compile(r"\[/?(bold|dim|red|green|yellow|blue|cyan|magenta|italic)\b[^\]]*\]")


def name_of(call: ast.expr) -> str:
    return call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else ""


def faults(path: Path) -> list[str]:
    where, tree = path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())
    rich = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich")
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and where != DOOR:
            name = name_of(node.func)
            if name in MAKERS & rich or (name == "print" and isinstance(node.func, ast.Name)):
                found.append(f"{where}:{node.lineno} {name}(...)")
            if any(keyword.arg in ("markup", "emoji", "highlight") for keyword in node.keywords):
                found.append(f"{where}:{node.lineno} switches the door")
        if isinstance(node, ast.Attribute) and RAW.fullmatch(ast.unparse(node)) and where not in WRITERS:
            found.append(f"{where}:{node.lineno} {ast.unparse(node)}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MARKUP.search(node.value):
            found.append(f"{where}:{node.lineno} markup is text here: {node.value!r}")
    return found


def test_text_goes_through_the_door() -> None:
    assert [fault for path in FILES for fault in faults(path)] == []


def test_the_list_of_writers_only_shrinks() -> None:
    assert all((SOURCE / name).is_file() for name in WRITERS), "a file of the list is gone: take it off"

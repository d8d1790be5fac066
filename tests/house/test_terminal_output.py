"""All terminal output goes through core/terminal.py: no other module creates a console or styled text."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src" / "keysift"
FILES = sorted(SOURCE.rglob("*.py"))
TERMINAL = "core/terminal.py"
# Modules that may write to a stream directly, because the text is escaped or trusted.
WRITERS = {
    "core/progress.py": "escaped lines, if stderr is not a terminal",
    "cli/terminal/output.py": "generated text: escaped on a terminal, unchanged elsewhere",
    "sweep/child.py": "escaped errors, to the log of a run",
    "records/lens_terms.py": "a page of the documentation",
    "kernels/gpu/report.py": "a page of the documentation",
    "data/workers.py": "arrays to the parent process",
    "bench/subprocess_call.py": "JSON to the parent process",
}
RICH_CONSTRUCTORS = {
    "Console",
    "Text",
    "TextColumn",
    "from_markup",
    "from_ansi",
    "escape_markup",
    "out",
    "log",
    "print_exception",
}
RAW_WRITE = re.compile(r"sys\.(__)?std(out|err)(__)?\.(write|writelines|buffer)")
MARKUP = re.compile(r"\[/?(bold|dim|red|green|yellow|blue|cyan|magenta|italic)\b[^\]]*\]")


def function_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def writes_raw(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and RAW_WRITE.fullmatch(ast.unparse(node)) is not None


def violations(path: Path) -> list[str]:
    file, tree = path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())
    imported_from_rich = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich")
        for alias in node.names
    }
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and file != TERMINAL:
            name = function_name(node.func)
            if name in RICH_CONSTRUCTORS & imported_from_rich or (name == "print" and isinstance(node.func, ast.Name)):
                lines.append(f"{file}:{node.lineno} {name}(...)")
            if any(keyword.arg in ("markup", "emoji", "highlight") for keyword in node.keywords):
                lines.append(f"{file}:{node.lineno} sets markup, emoji or highlight")
        if writes_raw(node) and file not in WRITERS:
            lines.append(f"{file}:{node.lineno} {ast.unparse(node)}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MARKUP.search(node.value):
            lines.append(f"{file}:{node.lineno} markup is printed as text: {node.value!r}")
    return lines


def test_output_goes_through_the_terminal_module() -> None:
    assert [line for path in FILES for line in violations(path)] == []


def test_every_listed_writer_still_writes() -> None:
    """The list of exceptions may only shrink."""
    for file in WRITERS:
        assert any(map(writes_raw, ast.walk(ast.parse((SOURCE / file).read_text())))), f"remove {file} from WRITERS"

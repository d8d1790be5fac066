"""The source files that a model needs, as one flat folder that transformers can take along with it.

transformers runs remote code from single files in one folder that import each other as `from .name import ...`. So
keysift.nn.cache becomes keysift_nn_cache.py and its imports are rewritten; nothing else is changed. What is bundled
follows from the imports, beginning at the module that transformers is told of.
"""

import ast
from pathlib import Path

import keysift

# The config is taken from here too: transformers puts what belongs to one file in a package of its own, and configs
# and models of two packages would not know each other.
ENTRY = "keysift.hub.modeling"
_PACKAGE = Path(keysift.__file__).parent


def file_of(module: str) -> str:
    """keysift.nn.cache -> keysift_nn_cache."""
    return module.replace(".", "_")


def bundle() -> dict[str, str]:
    """Name of each file and its text."""
    found: dict[str, str] = {}
    waiting = [ENTRY]
    while waiting:
        module = waiting.pop()
        name = f"{file_of(module)}.py"
        if name not in found:
            found[name], needed = rewritten(_path(module).read_text())
            waiting += needed
    # Older versions of transformers copy, of a local directory, only the files that the first one names itself.
    entry = f"{file_of(ENTRY)}.py"
    others = [f"    from .{name.removesuffix('.py')} import __name__ as _" for name in sorted(found) if name != entry]
    found[entry] += "\n".join(["", "", "def _files() -> None:", *others, ""])
    return found


def rewritten(source: str) -> tuple[str, list[str]]:
    """The same source with every import of keysift made relative and flat, and the modules that it imports."""
    lines, needed = source.splitlines(), []
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if node.module is not None and node.module.split(".")[0] == "keysift"]
    for node in sorted(ours, key=lambda node: -node.lineno):
        assert node.module is not None
        assert node.end_lineno is not None
        made = []
        for alias in node.names:
            inside = f"{node.module}.{alias.name}"
            module = inside if _is_module(inside) else node.module
            needed.append(module)
            called = alias.asname or alias.name
            if module == inside:
                # The first line is for transformers, which does not see that the second one needs a file.
                made += [
                    f"from .{file_of(module)} import __name__ as _",
                    f"from . import {file_of(module)} as {called}",
                ]
            else:
                made.append(f"from .{file_of(module)} import {alias.name} as {called}")
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + line for line in made]
    return "\n".join(lines) + "\n", needed


def _is_module(name: str) -> bool:
    path = _place(name)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _path(module: str) -> Path:
    path = _place(module)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _place(module: str) -> Path:
    return _PACKAGE.joinpath(*module.split(".")[1:])

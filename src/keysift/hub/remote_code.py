"""Bundle the source files of a model as remote code of transformers: a flat folder that is loaded with the weights.

transformers loads remote code from files in one folder that import each other as `from .name import ...`. So
keysift.nn.cache becomes keysift_nn_cache.py with rewritten imports and otherwise unchanged. The bundle holds the module
that transformers loads first, and every keysift module that it imports, directly or indirectly.
"""

import ast
from pathlib import Path

import keysift

# Configs and models are defined in this one module. transformers gives each entry file its own package, and a model
# does not recognize a config class from another package. save_pretrained names the module that defines a class.
ENTRY = "keysift.hub.models"
_PACKAGE = Path(keysift.__file__).parent


def file_of(module: str) -> str:
    """keysift.nn.cache -> keysift_nn_cache."""
    return module.replace(".", "_")


def bundle() -> dict[str, str]:
    """The text of each file by name."""
    files: dict[str, str] = {}
    waiting = [ENTRY]
    while waiting:
        module = waiting.pop()
        name = f"{file_of(module)}.py"
        if name not in files:
            files[name], needed = rewrite_imports(_path(module).read_text(encoding="utf-8"))
            waiting += needed
    # Older versions of transformers copy only the files that the entry file imports itself.
    entry = f"{file_of(ENTRY)}.py"
    others = [f"    from .{name.removesuffix('.py')} import __name__ as _" for name in sorted(files) if name != entry]
    files[entry] += "\n".join(["", "", "def _files() -> None:", *others, ""])
    return files


def rewrite_imports(source: str) -> tuple[str, list[str]]:
    """The source with relative, flat imports of keysift modules, and the modules that it imports."""
    lines, needed = source.splitlines(), []
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    imports = [node for node in nodes if node.module is not None and node.module.split(".")[0] == "keysift"]
    for node in sorted(imports, key=lambda node: -node.lineno):
        assert node.module is not None
        assert node.end_lineno is not None
        replacement = []
        for alias in node.names:
            inside = f"{node.module}.{alias.name}"
            module = inside if _is_module(inside) else node.module
            needed.append(module)
            bound = alias.asname or alias.name
            if module == inside:
                # transformers does not see that the second line needs a file, so the first line imports from it.
                replacement += [
                    f"from .{file_of(module)} import __name__ as _",
                    f"from . import {file_of(module)} as {bound}",
                ]
            else:
                replacement.append(f"from .{file_of(module)} import {alias.name} as {bound}")
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + line for line in replacement]
    return "\n".join(lines) + "\n", needed


def _is_module(name: str) -> bool:
    path = _place(name)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _path(module: str) -> Path:
    path = _place(module)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _place(module: str) -> Path:
    return _PACKAGE.joinpath(*module.split(".")[1:])

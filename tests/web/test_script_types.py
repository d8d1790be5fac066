"""The page scripts pass the TypeScript compiler in strict mode; their types are JSDoc comments."""

import shutil
import subprocess
from pathlib import Path

import pytest

import keysift.web
from keysift.web.inspect.page import SCRIPTS as INSPECT
from keysift.web.play.page import CONTROLS, MATHEMATICS, VIEWS
from tests.web.browser import node, npm_file

WEB = Path(keysift.web.__path__[0])
PAGES = {"play": (*MATHEMATICS, *CONTROLS, *VIEWS), "inspect": INSPECT}
FLAGS = [
    "--noEmit",
    "--allowJs",
    "--checkJs",
    "--strict",
    "--noUnusedLocals",
    "--noUnusedParameters",
    "--noImplicitReturns",
    *("--target", "es2022"),
    *("--lib", "es2022,dom,dom.iterable"),
]


def compile_errors(page: str, web: Path = WEB) -> str:
    """Type-check the scripts of a page as one program, since they share one global scope; returns the messages."""
    program = node()
    tsc = npm_file("typescript@5", "bin/tsc")
    files = [str(web / name) for name in ("shared/types.d.ts", f"{page}/types.d.ts", *PAGES[page])]
    process = subprocess.run(
        [program, str(tsc), *FLAGS, *files], check=False, capture_output=True, text=True, timeout=120, cwd=web
    )
    assert not process.stderr, process.stderr
    return process.stdout


@pytest.mark.parametrize("page", PAGES)
def test_scripts_have_no_type_errors(page: str) -> None:
    assert compile_errors(page) == ""


def test_every_script_is_part_of_a_page() -> None:
    scripts = {path.relative_to(WEB).as_posix() for path in WEB.rglob("*.js")}
    assert scripts == {name for names in PAGES.values() for name in names}


@pytest.mark.slow
def test_the_compiler_reports_a_misspelled_field(tmp_path: Path) -> None:
    web = shutil.copytree(WEB, tmp_path / "web", ignore=shutil.ignore_patterns("__pycache__"))
    script = web / "play" / "mathematics" / "state.js"
    text = script.read_text()
    assert text.count("key.masked ? 0 : 1") == 1
    script.write_text(text.replace("key.masked ? 0 : 1", "key.maskd ? 0 : 1"))
    assert "Property 'maskd' does not exist on type 'Key'" in compile_errors("play", web)

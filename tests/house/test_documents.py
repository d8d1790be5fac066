"""README, docs and evidence: Python blocks and commands run, generated blocks are current, links exist."""

import dataclasses
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from keysift.cli.main import parse
from keysift.mechanisms import MECHANISMS, TESTED, rules
from keysift.mechanisms.spec import Mechanism, Scalar
from tests.forked_process import run_keysift

ROOT = Path(__file__).parent.parent.parent
_spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)

PAGES = generate.pages()
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def _remove_new_mechanisms() -> Iterator[None]:
    """An example on a page may register a mechanism."""
    yield
    for name in set(MECHANISMS.names()) - TESTED:
        MECHANISMS.remove(name)


@each_page
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in fenced(page.read_text(), "python"):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.slow
@each_page
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """Run the keysift commands of `bash` blocks; check that make targets exist."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for block in fenced(page.read_text(), "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            if words[0] == "make":
                assert set(words[1:]) <= set(targets), line
            elif words[0] == "keysift":
                process = run_keysift(*words[1:], cwd=tmp_path)
                assert process.returncode == 0, (line, process.stderr)
            else:
                assert words[0] in ("git", "cd", "pip", "python"), f"unknown command: {line}"


@each_page
def test_long_commands_parse(page: Path) -> None:
    """The keysift commands of `sh` blocks take minutes: parse their flags only. `--resume` would read a run."""
    for line in "\n".join(fenced(page.read_text(), "sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["torchrun"]:
            words = words[words.index("-m") + 1 :]
        if words[:1] == ["keysift"] and "--resume" not in words:
            parse(words[1:])


@pytest.mark.slow
@each_page
def test_generated_blocks_are_current(page: Path) -> None:
    text = page.read_text()
    assert generate.regenerate(text) == text, "run `make docs`"


def test_plots_are_current() -> None:
    for file, plot in generate.plots().items():
        assert file.read_text() == plot, f"{file.name} is out of date: run `make docs`"


def test_pages_of_studies_are_current() -> None:
    for file, text in generate.evidence().items():
        assert file.read_text() == text, f"{file} is out of date: run `make docs`"


@pytest.mark.slow
@pytest.mark.parametrize("name", generate.FILES)
def test_generated_files_are_current(name: str) -> None:
    assert (ROOT / name).read_text() == generate.output(generate.FILES[name]) + "\n", "run `make docs`"


@each_page
def test_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_mechanism_has_a_page_and_every_page_a_mechanism() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "mechanisms").glob("*.md")} - {"adding", "README"}
    assert {mechanism.page for mechanism in MECHANISMS} == pages
    for mechanism in MECHANISMS:
        text = (ROOT / "docs" / "mechanisms" / f"{mechanism.page}.md").read_text()
        assert f"`{mechanism.name}`" in text
        for source in re.findall(r"arXiv:\d{4}\.\d{5}v\d", mechanism.source):
            assert source in text, f"{mechanism.page}.md does not cite {source}"


def test_adding_a_mechanism_explains_every_field() -> None:
    text = (ROOT / "docs" / "mechanisms" / "adding.md").read_text()
    kinds = (Mechanism, Scalar, *(kind for kind in vars(rules).values() if _is_rule(kind)))
    for kind in kinds:
        assert f"`{kind.__name__}`" in text
        for field in dataclasses.fields(kind):
            if field.init:
                assert re.search(rf"`{field.name}[`(]", text), f"{kind.__name__}.{field.name}"


def _is_rule(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, rules.Rule) and kind is not rules.Rule


def test_tables_with_numbers_are_generated() -> None:
    """Numbers in Markdown tables come from code, so that they cannot go out of date."""
    generated_pages = set(generate.evidence())
    for page in PAGES:
        text = "" if page in generated_pages else generate.BLOCK.sub("", page.read_text())
        text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"^\|.*\d.*\|$", text, flags=re.MULTILINE), page

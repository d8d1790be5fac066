"""Write the generated parts of the documentation: blocks of pages, plots of stored results, pages of evidence/.

`make docs` runs it. tests/house/test_documents.py fails if a block, plot or page is out of date. A block names the
command whose output it contains:

    <!-- generated: keysift mechanisms --markdown -->
    ...
    <!-- end -->

`FILES` lists files that are generated as a whole, with their commands.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
EVIDENCE = ROOT / "evidence"
sys.path.insert(0, str(ROOT))  # evidence is not an installed package
BLOCK = re.compile(r"(<!-- generated: (?P<command>[^\n]+?) -->\n).*?(<!-- end -->)", re.DOTALL)

FILES = {f"docs/picture-{scheme}.svg": f"keysift play --picture {scheme}" for scheme in ("light", "dark")}


def pages() -> list[Path]:
    """Every Markdown file of the repository's root, checkpoints/, evidence/ and docs/."""
    folders = (
        ROOT.glob("*.md"),
        (ROOT / "checkpoints").glob("*.md"),
        EVIDENCE.rglob("*.md"),
        (ROOT / "docs").rglob("*.md"),
    )
    return [page for folder in folders for page in sorted(folder)]


def regenerate(text: str) -> str:
    return BLOCK.sub(lambda block: f"{block[1]}{output(block['command'])}\n{block[3]}", text)


@cache
def output(command: str) -> str:
    """Standard output of a command. `keysift` runs in this process, because most of its time is importing torch."""
    program, *arguments = shlex.split(command)
    if arguments[:2] == ["bench", "show"] and not (ROOT / arguments[2]).exists():
        name = Path(arguments[2]).stem
        return f"No results are stored yet. `keysift bench {name} --out {arguments[2]}` measures them."
    if program != "keysift":
        beside_python = Path(sys.executable).parent / program
        process = subprocess.run([beside_python, *arguments], check=True, capture_output=True, text=True, cwd=ROOT)
        return process.stdout.strip()
    from keysift.cli.main import main

    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            main(arguments)
        except SystemExit as end:
            if end.code != 0:
                raise subprocess.CalledProcessError(int(end.code or 1), command) from None
    return text.getvalue().strip()


def plots() -> dict[Path, str]:
    """The SVG beside each stored result that has lengths to plot."""
    files = [file for file in sorted(RESULTS.glob("*.svg")) if file.with_suffix(".json").exists()]
    commands = {file: f"keysift bench show docs/results/{file.stem}.json --svg" for file in files}
    return {file: output(command) + "\n" for file, command in commands.items()}


def evidence() -> dict[Path, str]:
    """Pages and figures of evidence/ that follow from its records."""
    from evidence.pages.render import render

    return {EVIDENCE / name: text for name, text in render().items()}


def index() -> str:
    """Every page below docs/ by its title: those of docs/ itself, then folder by folder."""
    docs = ROOT / "docs"
    folders: dict[Path, list[Path]] = {}
    for page in pages():
        if docs in page.parents and page != docs / "README.md":
            folders.setdefault(page.parent, []).append(page)
    lines = []
    for folder, members in sorted(folders.items()):
        if folder != docs:
            readme = folder / "README.md"
            lines.append(_entry(readme) if readme in members else f"- {folder.name}")
        lines += [("" if folder == docs else "  ") + _entry(page) for page in members if page.name != "README.md"]
    return "\n".join(lines)


def versions() -> str:
    """Ranges of pyproject.toml, and the versions of constraints.txt, with which the tests run."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    requirements = [*project["dependencies"], *project["optional-dependencies"]["hub"]]
    (torch, transformers) = (
        next(text for text in requirements if text.startswith(name)) for name in ("torch", "transformers")
    )
    rows = ["| | supported | tested |", "|---|---|---|"]
    rows.append(f"| Python | {project['requires-python']} | 3.11 |")
    rows += [
        f"| {name} | {text[len(name) :]} | {pins[name]} |"
        for name, text in (("torch", torch), ("transformers", transformers))
    ]
    return "\n".join(rows)


def million() -> str:
    """The table of stored results of `keysift demo --million --json`: every model at its best setting, by length."""
    from keysift.core import safe_json
    from keysift.core.config import from_dict
    from keysift.records.long_recall import LongRecall

    rows = ["| model | tokens | correct | setting | read a text | an answer | keys in windows | read | accepted |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    stored = [data for name in ("million", "million-seeds") for data in safe_json.load(RESULTS / f"{name}.json")]
    for record in (from_dict(LongRecall, data) for data in stored):
        for cell in map(record.best, record.lengths):
            counts = (f"{keys:,.0f}" if keys is not None else "" for keys in (cell.in_window, cell.read, cell.accepted))
            times = f"{cell.read_seconds:.3g} s | {1000 * cell.answer_seconds:.3g} ms"
            answers = f"{cell.correct} of {cell.total} | {cell.setting}"
            rows.append(
                f"| {Path(record.subject.name).name} | {cell.length:,} | {answers} | {times} | {' | '.join(counts)} |"
            )
    return "\n".join(rows)


def search() -> str:
    """Targets and notes of the stored result of `keysift bench search`."""
    from keysift.bench.tables import summary
    from keysift.records.bench import read_result

    path = RESULTS / "search.json"
    if not path.exists():
        return "No results are stored yet. `keysift bench search --out docs/results/search.json` measures them."
    return "\n".join(summary(read_result(path)))


def plan(*flags: str) -> str:
    """The table of `keysift train --dry-run` for a preset on 64 GPUs."""
    from keysift.cli.main import parse
    from keysift.cli.verbs.train import estimate_rows

    arguments = ["train", "--preset", *flags, "--dry-run", "--world", "64", "--device", "h100"]
    rows = estimate_rows(parse(arguments))
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def _entry(page: Path) -> str:
    title = page.read_text().split("\n", 1)[0].removeprefix("# ")
    return f"- [{title}]({page.relative_to(ROOT / 'docs')})"


def write_all() -> None:
    from docs import notebook

    for file in notebook.NOTEBOOKS:
        notebook.store(file)
    for file, text in evidence().items():
        file.write_text(text)
    for name, command in FILES.items():
        (ROOT / name).write_text(output(command) + "\n")
    for file, svg in plots().items():
        file.write_text(svg)
    for page in pages():
        before = page.read_text()
        after = regenerate(before)
        if after != before:
            page.write_text(after)
            sys.stdout.write(f"rewrote {page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    blocks = {"--index": index, "--versions": versions, "--plan": plan, "--million": million, "--search": search}
    if len(sys.argv) > 1:
        sys.stdout.write(blocks[sys.argv[1]](*sys.argv[2:]) + "\n")
    else:
        write_all()

"""Rewrite the generated blocks of README and docs, the plots of stored results and the pages of the evidence:
`make docs`.

A house test fails where a block or a plot is out of date.

A block names the command whose output it is:

    <!-- generated: keysift mechanisms --markdown -->
    ...
    <!-- end -->

Whole files are listed in `FILES` with theirs.
"""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
BLOCK = re.compile(r"(<!-- generated: (?P<command>[^\n]+?) -->\n).*?(<!-- end -->)", re.DOTALL)

FILES = {f"docs/picture-{scheme}.svg": f"keysift play --picture {scheme}" for scheme in ("light", "dark")}


def pages() -> list[Path]:
    found = ROOT.glob("*.md"), (ROOT / "checkpoints").glob("*.md"), (ROOT / "docs").rglob("*.md")
    return [page for part in found for page in sorted(part)]


def regenerate(text: str) -> str:
    return BLOCK.sub(lambda block: f"{block[1]}{output(block['command'])}\n{block[3]}", text)


@cache
def output(command: str) -> str:
    program, *arguments = shlex.split(command)
    beside_python = Path(sys.executable).parent / program
    done = subprocess.run([beside_python, *arguments], check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip()


def plots() -> dict[Path, str]:
    """The SVG beside each stored result that has lengths to plot."""
    files = [file for file in sorted(RESULTS.glob("*.svg")) if file.with_suffix(".json").exists()]
    commands = {file: f"keysift bench show docs/results/{file.stem}.json --svg" for file in files}
    return {file: output(command) + "\n" for file, command in commands.items()}


def evidence() -> dict[str, str]:
    """The pages and figures of docs/results that follow from the records in docs/results/evidence."""
    from keysift.web.evidence import rendered

    return rendered(RESULTS, ROOT / "recipes" / "evidence")


def index() -> str:
    """Every page below docs/ by its title: those of docs/ itself, then folder by folder."""
    docs = ROOT / "docs"
    folders: dict[Path, list[Path]] = {}
    for page in pages():
        if docs in page.parents and page != docs / "README.md":
            folders.setdefault(page.parent, []).append(page)
    lines = []
    for folder, found in sorted(folders.items()):
        if folder != docs:
            readme = folder / "README.md"
            lines.append(_entry(readme) if readme in found else f"- {folder.name}")
        lines += [("" if folder == docs else "  ") + _entry(page) for page in found if page.name != "README.md"]
    return "\n".join(lines)


def counts() -> str:
    """Two entries of README's list: how many mechanisms there are, and how many claims about screening held."""
    from keysift.mechanisms import MECHANISMS
    from keysift.mechanisms.spec import Promise
    from keysift.sweep.groups import Word, groups
    from keysift.sweep.pages import PAGES
    from keysift.sweep.records import read_records
    from keysift.web.latency_page import latency_verdicts, read_latency

    verdicts = latency_verdicts(read_latency(RESULTS / "models.json"))
    for one in PAGES:
        verdicts += one.decide(groups(list(read_records(RESULTS / "evidence" / f"{one.study}.jsonl").values())))
    words = [verdict.word for verdict in verdicts]
    came_out = ", ".join(f"{words.count(word)} {word}" for word in get_args(Word))
    return (
        f"- Mechanisms: {len(MECHANISMS.names())}, each with a verdict on {len(Promise)} promises "
        f"([table](docs/mechanisms/README.md)).\n"
        f"- Evidence: of {len(words)} claims about screening, tried on one machine, {came_out} "
        f"([table](docs/results/README.md))."
    )


def _entry(page: Path) -> str:
    title = page.read_text().split("\n", 1)[0].removeprefix("# ")
    return f"- [{title}]({page.relative_to(ROOT / 'docs')})"


if __name__ == "__main__" and sys.argv[1:] == ["--index"]:
    sys.stdout.write(index() + "\n")
elif __name__ == "__main__" and sys.argv[1:] == ["--counts"]:
    sys.stdout.write(counts() + "\n")
elif __name__ == "__main__":
    for name, text in evidence().items():
        (RESULTS / name).write_text(text)
    for name, command in FILES.items():
        (ROOT / name).write_text(output(command) + "\n")
    for file, drawn in plots().items():
        file.write_text(drawn)
    for page in pages():
        before = page.read_text()
        after = regenerate(before)
        if after != before:
            page.write_text(after)
            sys.stdout.write(f"rewrote {page.relative_to(ROOT)}\n")

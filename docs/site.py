"""Collect the pages of the site in build/site-source: `make site` then builds build/site with mkdocs.

Pages keep their place in the repository, so that their links work. Links to code become text. The landing page, the
reference of the public names and the pictures of weight curves are made here.
"""

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "build" / "site-source"
ASSETS = {".svg", ".png", ".ipynb", ".json", ".toml", ".cff"}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
ATTRIBUTE = re.compile(r'(?:src|srcset)="(?P<target>[^":]+)"')
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
SECTIONS = {
    "Understand": (
        "docs/mechanisms/softmax.md",
        "docs/mechanisms/screening.md",
        "docs/playground.md",
        "docs/glossary.md",
    ),
    "Use": (
        *("docs/train.md", "docs/data.md", "docs/models.md", "docs/text.md", "docs/evaluate.md", "docs/lens.md"),
        *("docs/lens-reference.md", "docs/hub.md", "docs/pretrained.md", "docs/scale.md"),
    ),
    "Performance": ("docs/performance.md", "docs/performance-mechanisms.md", "docs/performance-models.md"),
}


def pages() -> list[Path]:
    """The Markdown files of the site, relative to the repository."""
    from docs.generate import pages as all_pages

    return [page.relative_to(ROOT) for page in all_pages() if page != ROOT / "README.md"]


def collect() -> None:
    """Write every page and the files it shows, the landing page, the reference, and the playground."""
    from keysift.cli.main import parse
    from keysift.cli.verbs import play

    shutil.rmtree(SOURCE, ignore_errors=True)
    for page in pages():
        text = (ROOT / page).read_text()
        if page.parent.as_posix() == "docs/mechanisms":
            text = with_curves(text)
        write(page, relink(text, page))
    write(Path("index.md"), landing())
    write(Path("reference.md"), reference())
    write(Path("site.css"), CSS)
    write(Path("site.js"), SCRIPT)
    write(Path("iframe-worker.js"), WORKER)
    play.run(parse(["play", "--no-open", "-o", str(SOURCE / "playground.html")]))
    write_config()


def write(path: Path, text: str) -> None:
    file = SOURCE / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def relink(text: str, page: Path) -> str:
    """The text with links to code as text; files that it shows or links are copied."""
    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else _relink(part, page) for part in parts)


def _relink(text: str, page: Path) -> str:
    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if ":" in target:
            return match[0]
        file = (ROOT / page.parent / target).resolve()
        relative = file.relative_to(ROOT)
        if relative == Path("README.md"):
            return f"[{match['text']}]({'../' * (len(page.parts) - 1)}index.md)"
        if file.suffix == ".md" or copy(relative):
            return match[0]
        return match["text"]

    for match in ATTRIBUTE.finditer(text):
        copy((ROOT / page.parent / match["target"]).resolve().relative_to(ROOT))
    return LINK.sub(link, text)


def copy(file: Path) -> bool:
    """Copy a picture or data file into the site. Returns whether it is one."""
    if file.suffix not in ASSETS or not (ROOT / file).is_file():
        return False
    (SOURCE / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / file, SOURCE / file)
    return True


def landing() -> str:
    """README up to the commands, the playground, and the path of each kind of reader."""
    readme = (ROOT / "README.md").read_text().split("\n## What you can do")[0]
    readers = (ROOT / "docs" / "README.md").read_text().split("\n## All pages")[0].split("\n", 1)[1]
    frame = (
        '\n## Try it\n\n<iframe class="playground" src="playground.html" loading="lazy" '
        'title="Playground: change scores, see weights"></iframe>\n\n'
        "[Open the playground on a page of its own](playground.html). [What it shows](docs/playground.md).\n"
    )
    return _relink(readme, Path("index.md")) + frame + _from_docs(readers)


def _from_docs(text: str) -> str:
    """Text of docs/README.md with links as seen from the root."""
    text = _relink(text, Path("docs/README.md"))
    text = LINK.sub(lambda match: match[0] if ":" in match["target"] else _up(match), text)
    return ATTRIBUTE.sub(lambda match: match[0].replace(match["target"], f"docs/{match['target']}"), text)


def _up(match: re.Match[str]) -> str:
    target = match["target"].removeprefix("../") if match["target"].startswith("../") else f"docs/{match['target']}"
    return f"{match['image']}[{match['text']}]({target}{match['anchor'] or ''})"


def reference() -> str:
    """A page of the public names, from their docstrings."""
    import keysift
    import keysift.data
    import keysift.lens

    lines = ["# Reference", "", "The public names, from their docstrings. [What public means](docs/versions.md).", ""]
    for module in (keysift, keysift.data, keysift.lens):
        lines += [f"## {module.__name__} {{ #{module.__name__} }}", ""]
        for name in module.__all__:
            value = getattr(module, name)
            qualified = getattr(value, "__qualname__", None)
            if isinstance(value, ModuleType) or name.startswith("__"):
                continue
            if qualified is None:
                lines += [
                    f"### `{name}` {{ #{name} }}",
                    "",
                    f"An instance of `{type(value).__name__}`. {type(value).__doc__}",
                    "",
                ]
            else:
                lines += [f"::: {value.__module__}.{qualified}", ""]
    return "\n".join(lines)


def with_curves(text: str) -> str:
    """A page of mechanisms with the weight curve of each in front of its promises."""
    names = re.search(r"<!-- generated: keysift mechanisms ([\w+ ]+?) --markdown -->", text)
    if names is None or "\n## Promises" not in text:
        return text
    drawings = "\n\n".join(filter(None, map(curve, names[1].split())))
    return text.replace("\n## Promises", f"\n## Weight curve\n\n{drawings}\n\n## Promises", 1)


def curve(name: str, width: int = 420, height: int = 180) -> str:
    """The weight of a key over its score, beside two other keys with scores 0 and 0.5, as SVG with a caption."""
    import torch

    from keysift.core.errors import KeysiftError
    from keysift.kernels.weigh import weigh
    from keysift.mechanisms import MECHANISMS

    for low, high in ((-4.0, 4.0), (-1.0, 1.0)):
        scores = torch.linspace(low, high, 97).tolist()
        try:
            weights = [float(weigh(name, [score, 0.5, 0.0])[0]) for score in scores]
        except KeysiftError:
            continue
        break
    else:
        return ""
    bottom, top = min(0.0, *weights), max(1.0, *weights)
    x = [40 + (width - 50) * (score - low) / (high - low) for score in scores]
    y = [height - 30 - (height - 45) * (weight - bottom) / (top - bottom) for weight in weights]
    zero = height - 30 + (height - 45) * bottom / (top - bottom)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    title = MECHANISMS.find(name).title
    text = f"Weight of a key over its score from {low:g} to {high:g}, beside keys with scores 0.5 and 0"
    return (
        f'<figure class="curve"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}: {text}">'
        f'<line class="axis" x1="40" x2="{width - 10}" y1="{zero:.1f}" y2="{zero:.1f}"/>'
        f'<polyline points="{points}"/>'
        f'<text x="4" y="20">{top:.3g}</text><text x="4" y="{height - 26}">{bottom:.3g}</text>'
        f'<text x="40" y="{height - 8}">{low:g}</text>'
        f'<text x="{width - 10}" y="{height - 8}" text-anchor="end">{high:g}</text>'
        f"</svg><figcaption><code>{name}</code>. {text}.</figcaption></figure>"
    )


def write_config() -> None:
    """mkdocs.yml with the navigation: every page once."""
    left = {page.as_posix() for page in pages()}
    lines = ["INHERIT: ../mkdocs.yml", "docs_dir: site-source", "site_dir: site", "nav:", "  - index.md"]
    folders = {"Mechanisms": "docs/mechanisms/", "Results": "evidence/", "Decisions": "docs/decisions/"}
    members = {title: [page for page in names if page in left] for title, names in SECTIONS.items()}
    left -= {page for names in members.values() for page in names}
    for title, folder in folders.items():
        members[title] = sorted((p for p in left if p.startswith(folder)), key=lambda p: (p != f"{folder}README.md", p))
        left -= set(members[title])
    for title in ("Understand", "Mechanisms", "Use", "Results", "Performance"):
        lines += [f"  - {title}:", *(f"      - {page}" for page in members[title])]
    lines += ["  - reference.md", "  - Project:", *(f"      - {page}" for page in sorted(left))]
    lines += ["  - Decisions:", *(f"      - {page}" for page in members["Decisions"])]
    (ROOT / "build" / "mkdocs.yml").write_text("\n".join(lines) + "\n")


CSS = """.playground { width: 100%; height: 52rem; border: 1px solid var(--md-default-fg-color--lighter); }
.curve { margin: 0; max-width: 30rem; }
.curve svg { width: 100%; height: auto; }
.curve polyline { fill: none; stroke: var(--md-typeset-a-color); stroke-width: 2; }
.curve .axis { stroke: var(--md-default-fg-color--light); }
.curve text { fill: var(--md-default-fg-color); font-size: 11px; }
.md-typeset figcaption { color: var(--md-default-fg-color); font-style: normal; }
.md-typeset a:not(.md-button):not(.headerlink) { text-decoration: underline; }
.md-copyright { color: #bbb; }
[data-md-color-scheme="default"] {
  --md-code-hl-comment-color: #5f5f5f; --md-code-hl-operator-color: #5f5f5f; --md-code-hl-variable-color: #5f5f5f;
  --md-code-hl-punctuation-color: #5f5f5f; --md-code-hl-generic-color: #5f5f5f;
}
[data-md-color-scheme="slate"] { --md-code-hl-number-color: #f08a7e; --md-code-hl-constant-color: #b0a4f0; }
.md-typeset img[src$="headline.svg"], .md-typeset img[src$="figure.svg"] { background: #fff; }
"""
SCRIPT = """// Scrollable code and tables take the keyboard focus, so that they can be scrolled without a mouse.
// The theme adds them while the page loads.
const boxes = "pre > code, .md-typeset__table, .md-typeset__scrollwrap";
const mark = () => document.querySelectorAll(boxes).forEach((box) => { box.tabIndex = 0; });
new MutationObserver(mark).observe(document.body, { childList: true, subtree: true });
mark();
"""
# The theme loads a script of this name to search pages from disk, by default from the network.
WORKER = """// A page that was opened from disk cannot start a Worker, so search runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      this.ready = new Promise((resolve) => script.addEventListener("load", resolve));
      frame.contentDocument.body.append(script);
    }
    async postMessage(data) {
      await this.ready;
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
  };
}
"""

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    collect()

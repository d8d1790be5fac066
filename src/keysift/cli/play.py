"""The playground: one page to move keys, arrows and maps by hand. Writes it and opens it in the browser."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from keysift.core.config import config


@config
class Args:
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("out/play.html")
    """Where the page goes: one file that needs no network."""
    open: bool = True
    """Open it in the browser; --no-open only writes it."""
    model: str | None = None
    """Measure this model for the view of a real one: whatever `keysift inspect` opens. By default what was measured of
    stories15M is shown."""
    json: bool = False
    """Print what was measured of the model as JSON and write no page."""
    picture: Literal["light", "dark"] | None = None
    """Print the README's picture as SVG instead: one key in two companies."""


def run(args: Args) -> None:
    import webbrowser

    from keysift.cli import output
    from keysift.evaluate.play import COMPANIES, playground, two_companies
    from keysift.web.picture import picture
    from keysift.web.play_page import play_page, shipped_model

    if args.picture is not None:
        output.print_plain(picture(COMPANIES, two_companies(), args.picture))
        return
    real = shipped_model() if args.model is None else measure(args.model)
    if args.json:
        output.print_plain(json.dumps(real, separators=(",", ":"), allow_nan=False))
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(play_page(playground(), real), encoding="utf-8")
    address = args.out.resolve().as_uri()
    if args.open and not webbrowser.open(address):
        output.print_note("no browser found here; open the address below in one")
    output.print_plain(address)


def measure(model: str, tokens: int = 256) -> Mapping[str, Any]:
    """How the model's mass thins out over a short story, and the maps of its three most telling heads."""
    from keysift.hub.subject import open_subject
    from keysift.lens.examine import inspect
    from keysift.lens.maps import relevance_maps
    from keysift.lens.thinning import telling_heads, thinning

    story = (resources.files("keysift.lens") / "story.txt").read_text(encoding="utf-8").replace("\n", " ")
    subject = open_subject(model)
    record = inspect(subject, {"a story": story}, tokens=tokens, sample=1, tests=False)
    maps = relevance_maps(subject, story, tokens=24, heads=telling_heads(record))
    return {**thinning(record), "maps": maps}

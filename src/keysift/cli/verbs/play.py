"""Write the playground, an interactive page about attention mechanisms, and open it in the browser."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from keysift.cli.flags.subject import check_subject, open_subject
from keysift.core.config import config, to_dict


@config
class Args:
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("out/play.html")
    """File to write. The page needs no network."""
    open: bool = True
    """Open the page in the browser; --no-open only writes it."""
    model: str | None = None
    """Model to measure, as for `keysift inspect`; by default the page shows stored measurements of stories15M."""
    json: bool = False
    """Print the measurements of the model as JSON and write no page."""
    picture: Literal["light", "dark"] | None = None
    """Print the picture of docs/README.md as SVG: the same key with different competitors."""


def run(args: Args) -> None:
    if args.model is not None:
        check_subject(args.model)
    import webbrowser

    from keysift.cli.flags.out_file import make_folder_of
    from keysift.cli.terminal import output
    from keysift.core.disk import write_atomic
    from keysift.verify.playground_reference import PICTURE_PRESETS, picture_cases, playground
    from keysift.web.play.page import play_page, stored_measurement
    from keysift.web.play.picture import picture

    if args.picture is not None:
        output.print_plain(picture(PICTURE_PRESETS, picture_cases(), args.picture))
        return
    real = stored_measurement() if args.model is None else measure(args.model)
    if args.json:
        output.print_plain(json.dumps(real, separators=(",", ":"), allow_nan=False))
        return
    make_folder_of(args.out)
    write_atomic(args.out, play_page(playground(), real))
    address = args.out.resolve().as_uri()
    if args.open and not webbrowser.open(address):
        output.print_note("no browser found here; open the address below in one")
    output.print_plain(address)


def measure(model: str, tokens: int = 256) -> Mapping[str, Any]:
    """Dispersion curves of the model on a short story, and the relevance maps of three representative heads."""
    from keysift.lens.diagnostics.dispersion import dispersion_curves, representative_heads
    from keysift.lens.diagnostics.relevance_maps import relevance_maps
    from keysift.lens.inspection import inspect

    story = (resources.files("keysift.lens") / "story.txt").read_text(encoding="utf-8").replace("\n", " ")
    subject = open_subject(model)
    record = inspect(subject, {"a story": story}, tokens=tokens, sample=1, tests=False)
    maps = relevance_maps(
        subject, story, tokens=24, heads=representative_heads(record), source="a story", command="keysift play"
    )
    return {**dispersion_curves(record), "maps": to_dict(maps)}

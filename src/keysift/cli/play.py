"""The playground: one page to move keys, arrows and maps by hand. Writes it and opens it in the browser."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from keysift.core.config import config


@config
class Args:
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("out/play.html")
    """Where the page goes: one file that needs no network."""
    open: bool = True
    """Open it in the browser; --no-open only writes it."""
    picture: Literal["light", "dark"] | None = None
    """Print the README's picture as SVG instead: one key in two companies."""


def run(args: Args) -> None:
    import webbrowser

    from keysift.cli import output
    from keysift.evaluate.play import COMPANIES, playground, two_companies
    from keysift.web.picture import picture
    from keysift.web.play_page import play_page

    if args.picture is not None:
        output.print_plain(picture(COMPANIES, two_companies(), args.picture))
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(play_page(playground()), encoding="utf-8")
    address = args.out.resolve().as_uri()
    if args.open and not webbrowser.open(address):
        output.print_note("no browser found here; open the address below in one")
    output.print_plain(address)

"""Values with a page of their own: shown inside a notebook, or written to a file and opened in a browser.

The page is made by `keysift.web`, which imports the records; so a record names the function instead of importing it.
"""

import sys
import tempfile
import webbrowser
from html import escape
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from keysift.core.disk import write_atomic


class Shown:
    """A value that `show` displays. `PAGE` names the module whose `page_of(value, inline=...)` returns its HTML."""

    PAGE: ClassVar[str]
    HEIGHT: ClassVar[int] = 900  # pixels of the frame in a notebook

    def to_html(self, *, inline: bool = False) -> str:
        """A self-contained page; `inline` is the form for the frame of a notebook."""
        html: str = import_module(self.PAGE).page_of(self, inline=inline)
        return html

    def _repr_html_(self) -> str:
        frame = f"width='100%' height='{self.HEIGHT}' style='border:0' sandbox='allow-scripts allow-downloads'"
        return f"<iframe title='keysift' {frame} srcdoc='{escape(self.to_html(inline=True))}'></iframe>"

    def show(self, path: Path | str | None = None) -> Path | None:
        """Show the page: below the cell of a notebook, else in a browser. With `path`, only write it there.

        Returns the file that was written, None in a notebook.
        """
        if path is None and in_notebook():
            import_module("IPython.display").display(self)
            return None
        page = Path(tempfile.mkdtemp(prefix="keysift-")) / "page.html" if path is None else Path(path)
        write_atomic(page, self.to_html())
        if path is None:
            webbrowser.open(page.as_uri())
        return page


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")

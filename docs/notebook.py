"""Run the notebooks of docs/ without Jupyter: code cells from top to bottom in one namespace.

`make docs` stores what each cell prints and draws in the notebook, so that it can be read without running it.
tests/house/test_notebook.py runs the cells again and compares.
"""

import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted(Path(__file__).parent.glob("*.ipynb"))


def read(file: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(file.read_text())
    return notebook


def run(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell: printed text, and one PNG for each matplotlib figure that is shown."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    show = pyplot.show
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        figures: list[dict[str, Any]] = []
        pyplot.show = lambda figures=figures: figures.append(_png(pyplot))
        try:
            with contextlib.redirect_stdout(io.StringIO()) as text:
                exec(compile("".join(cell["source"]), "notebook", "exec"), namespace)
        finally:
            pyplot.show = show
        printed = text.getvalue().splitlines(keepends=True)
        stream = [{"name": "stdout", "output_type": "stream", "text": printed}] if printed else []
        outputs.append([*stream, *figures])
    return outputs


def store(file: Path) -> None:
    """Write the outputs of every cell into the notebook."""
    notebook = read(file)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(cells, run(notebook), strict=True), start=1):
        cell |= {"execution_count": number, "outputs": outputs}
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _png(pyplot: Any) -> dict[str, Any]:
    picture = io.BytesIO()
    pyplot.gcf().savefig(picture, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
    pyplot.close()
    data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}
    return {"data": data, "metadata": {}, "output_type": "display_data"}

"""The notebook runs from top to bottom, and shows what it stores."""

from pathlib import Path

import pytest

from docs import notebook


@pytest.mark.parametrize("file", notebook.NOTEBOOKS, ids=lambda file: file.stem)
def test_cells_print_and_draw_what_is_stored(file: Path) -> None:
    content = notebook.read(file)
    stored = [cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code"]
    assert "keysift.weigh(" in "".join(content["cells"][1]["source"]), "the first cell is the example of the README"
    pictures = 0
    for shown, expected in zip(notebook.run(content), stored, strict=True):
        assert [output.get("text") for output in shown] == [output.get("text") for output in expected], (
            "run `make docs`"
        )
        pictures += sum("image/png" in output.get("data", {}) for output in expected)
    assert pictures >= 3

"""Documents from Hugging Face datasets: `hf:NAME`, `hf:NAME:CONFIG`, `hf:NAME:CONFIG:SPLIT`."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from keysift.core.errors import DataError, UnsupportedError
from keysift.data.documents import Document, text_of


class HuggingFace:
    """A split of a dataset, streamed and identified by its name: changes upstream are not noticed."""

    size = position = None
    notes = ()

    def __init__(self, spec: str) -> None:
        name, config, split, *more = [*spec.split(":"), "", ""][: max(3, spec.count(":") + 1)]
        if not name or more:
            raise DataError(f"a Hugging Face dataset is written hf:NAME[:CONFIG[:SPLIT]], got hf:{spec}")
        if find_spec("datasets") is None:
            raise UnsupportedError(f"hf:{spec} needs the datasets package; run pip install 'keysift[data]'")
        self.name = f"hf:{spec}"
        self.path, self.config, self.split = name, config or None, split or "train"

    def identity(self) -> dict[str, Any]:
        return {"source": "hf", "path": self.path, "config": self.config, "split": self.split}

    def documents(self) -> Iterator[Document]:
        import datasets  # an optional extra that is slow to import

        try:
            rows = datasets.load_dataset(self.path, self.config, split=self.split, streaming=True)
        except Exception as error:  # network, names and formats raise many different exceptions
            raise DataError(f"{self.name} cannot be loaded: {type(error).__name__}: {error}") from error
        for number, row in enumerate(rows):
            yield Document(f"{self.name}/{number}", text_of(row, f"{self.name} row {number}"))

"""From text to text: a saved model and its tokenizer together.

text = keysift.open("runs/first")
text.generate("def ", max_new_tokens=50)
for piece in text.stream("def "): ...
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, overload

from keysift.core.errors import DataError
from keysift.data.tokenizer import Tokenizer, load_tokenizer
from keysift.models.generate import Generation, Request, Settings, requests_of
from keysift.models.language import LanguageModel
from keysift.models.save import load
from keysift.nn.inference import Inference

Prompt = str | Request


class TextModel:
    """A model in eval mode, and the tokenizer it was trained with."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        if tokenizer.vocab_size > model.config.vocab_size:
            raise DataError(
                f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} tokens and the model knows "
                f"{model.config.vocab_size}; put the tokenizer it was trained with into its directory"
            )
        self.model = model.eval()
        self.tokenizer = tokenizer

    # A text is also a sequence of texts to a type checker; the first line that fits counts.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, inference: Inference | None = None, **settings: Unpack[Settings]
    ) -> str: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, inference: Inference | None = None, **settings: Unpack[Settings]
    ) -> list[str]: ...
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, inference: Inference | None = None, **settings: Unpack[Settings]
    ) -> str | list[str]:
        """What the model adds to a text, or to each of several at once; a `Request` brings its own settings.

        max_new_tokens   how many tokens to add at most
        sampling         how tokens are chosen; by default the most likely one. Text b of several draws with seed + b
        stop             end before one of these texts
        inference        the same value an evaluation takes, e.g. Inference(expand_windows=True)
        """
        if isinstance(prompt, Prompt):
            return self.generate([prompt], inference=inference, **settings)[0]
        made = self.start(requests_of(prompt, **settings), inference=inference).run()
        return [row.text or "" for row in made.rows]

    def stream(
        self, prompt: Prompt, *, inference: Inference | None = None, **settings: Unpack[Settings]
    ) -> Iterator[str]:
        """The same text piece by piece, as it is made. Pieces are whole characters and none is empty."""
        pieces = self.start(requests_of([prompt], **settings), inference=inference)
        return (piece.text for piece in pieces if piece.text)

    def start(self, requests: Sequence[Request], *, inference: Inference | None = None) -> Generation:
        """Several at once, piece by piece: iterate over it, and each piece says whose it is."""
        return Generation(
            self.model,
            [replace(one, prompt=self._tokens(one.prompt)) for one in requests],
            inference=inference,
            end_id=self.tokenizer.end_id,
            decoder=self.tokenizer.decoder,
            vocab_size=self.tokenizer.vocab_size,
        )

    def _tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """A text without a begin token begins after the end of another."""
        if not isinstance(prompt, str):
            return prompt or [self.tokenizer.end_id]
        return [*self.tokenizer.begin, *self.tokenizer.encode(prompt)] or [self.tokenizer.end_id]


def open(directory: Path | str) -> TextModel:
    """The model and the tokenizer in a directory, such as a run: `keysift.open("runs/first").generate("text")`."""
    return TextModel(load(directory), load_tokenizer(Path(directory)))

"""Text in, text out: a model with its tokenizer.

text = keysift.open("runs/first")
text.generate("def ", max_new_tokens=50)
for piece in text.stream("def "): ...
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, overload

from keysift.core.errors import DataError
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.load import load_tokenizer
from keysift.models.generate import Generation, Request, Settings, make_requests
from keysift.models.language_model import LanguageModel
from keysift.models.save import load
from keysift.nn.inference import Inference

Prompt = str | Request


class TextModel:
    """A model in eval mode, and the tokenizer it was trained with."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        if tokenizer.vocab_size > model.config.vocab_size:
            raise DataError(
                f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} tokens and the model has "
                f"{model.config.vocab_size}; put the tokenizer it was trained with into its directory"
            )
        self.model = model.eval()
        self.tokenizer = tokenizer

    # For a type checker a str is also a sequence of str; the first overload that matches is used.
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
        """Continuation of a prompt, or of each prompt in a list. A `Request` has its own settings.

        max_new_tokens   maximum number of tokens to generate
        sampling         sampling settings, greedy by default; prompt b of a list uses seed + b
        stop             stop before the first of these texts
        inference        inference options, e.g. Inference(expand_windows=True)

        Only tokens of the tokenizer are generated, even if the model's vocabulary is padded.
        """
        if isinstance(prompt, Prompt):
            return self.generate([prompt], inference=inference, **settings)[0]
        generation = self.start(make_requests(prompt, **settings), inference=inference).run()
        return [row.text or "" for row in generation.rows]

    def stream(
        self, prompt: Prompt, *, inference: Inference | None = None, **settings: Unpack[Settings]
    ) -> Iterator[str]:
        """The same text in pieces, as it is generated. Pieces are whole characters, and none is empty."""
        pieces = self.start(make_requests([prompt], **settings), inference=inference)
        return (piece.text for piece in pieces if piece.text)

    def start(self, requests: Sequence[Request], *, inference: Inference | None = None) -> Generation:
        """A `Generation` for a batch of requests. Iterate over its pieces; each names its row."""
        return Generation(
            self.model,
            [replace(request, prompt=self._tokens(request.prompt)) for request in requests],
            inference=inference,
            end_id=self.tokenizer.end_id,
            decoder=self.tokenizer.decoder,
            vocab_size=self.tokenizer.vocab_size,
        )

    def _tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """Token ids of a prompt. An empty prompt becomes the end token of a preceding text."""
        if not isinstance(prompt, str):
            return prompt or [self.tokenizer.end_id]
        return [*self.tokenizer.prefix_ids, *self.tokenizer.encode(prompt)] or [self.tokenizer.end_id]


def open(directory: Path | str) -> TextModel:
    """Load the model and the tokenizer of a directory, e.g. a run: `keysift.open("runs/first").generate("text")`."""
    return TextModel(load(directory), load_tokenizer(Path(directory)))

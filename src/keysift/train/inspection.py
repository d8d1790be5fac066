"""What is worth seeing at a checkpoint, once it is saved: a sample, and what each head has learned.

Nothing here may cost the run: a part that fails is one line of warning.
"""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from keysift.core.config import to_dict
from keysift.core.disk import write_whole
from keysift.core.shown import shown_text
from keysift.evaluate.tiles import heads
from keysift.models.language import LanguageModel
from keysift.runs.directory import write_json
from keysift.runs.layout import HEADS, SAMPLES, name_of
from keysift.train.config import TrainConfig
from keysift.train.samples import sample
from keysift.train.source import Source

LONGEST = 512  # tokens: the weights of a layer are formed to inspect its heads


def inspect(
    run: Path,
    model: LanguageModel,
    source: Source,
    tokens_1T: Tensor,
    config: TrainConfig,
    step: int,
    say: Callable[[str], None],
) -> None:
    def write_sample() -> None:
        prompt = source.prompt if config.sample_prompt is None else config.sample_prompt
        if config.sample_tokens and prompt is not None:
            text = sample(model, source.tokenizer, prompt, config.sample_tokens)
            (run / SAMPLES).mkdir(exist_ok=True)
            write_whole(run / SAMPLES / f"{name_of(step)}.txt", text + "\n")
            say("\n".join(f"  | {line}" for line in shown_text(text).splitlines()))

    def write_heads() -> None:
        (run / HEADS).mkdir(exist_ok=True)
        found = [to_dict(head) for head in heads(model, tokens_1T[:, :LONGEST])]
        write_json(run / HEADS / f"{name_of(step)}.json", found)

    for what, work in (("sample", write_sample), ("inspection of the heads", write_heads)):
        try:
            work()
        except Exception as error:  # whatever it was, the checkpoint is saved and the run continues
            say(f"warning: the {what} of step {step} failed ({error}); the checkpoint is saved")

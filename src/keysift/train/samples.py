"""What a model writes when asked to continue a prompt."""

from keysift.data.tokenizer import Tokenizer
from keysift.models.generate import generate
from keysift.models.language import LanguageModel
from keysift.models.sampling import Sampling


def sample(model: LanguageModel, tokenizer: Tokenizer, prompt: str, length: int) -> str:
    """The prompt and what the model adds to it; the same model writes the same."""
    ids = [*tokenizer.begin, *tokenizer.encode(prompt)] or [tokenizer.end_id]
    made = generate(
        model,
        [ids],
        max_new_tokens=length,
        sampling=Sampling(temperature=0.7, seed=0),
        end_id=tokenizer.end_id,
        decoder=tokenizer.decoder,
    )
    return prompt + (made.rows[0].text or "")

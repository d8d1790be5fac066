"""A model as a directory for others: its files, the code that runs it, and a model card.

It loads with AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True) where keysift is not installed. The code
is keysift's own source (bundle.py); the compiled kernels are not part of it, so it computes in plain torch.
"""

import json
from pathlib import Path
from typing import Any

from keysift import __version__
from keysift.core import jsons
from keysift.core.disk import whole_folder
from keysift.core.errors import DataError, UnsupportedError
from keysift.data.tokenizer import load_tokenizer, save_tokenizer
from keysift.hub.bundle import ENTRY, bundle, file_of
from keysift.models.kinds import kind_of
from keysift.models.language import LanguageModel, count
from keysift.models.save import CONFIG, load, write_files
from keysift.runs.importing import ORIGIN
from keysift.runs.layout import holds_a_run
from keysift.runs.summary import Summary, summary

_CARD = "README.md"
_SHOWN = ("data", "tokenizer", "context", "batch_tokens", "lr", "schedule", "warmup", "weight_decay", "clip", "seed")


def export(run: Path, out: Path) -> list[str]:
    """Write `out`, a new directory; returns the names of its files."""
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise DataError(f"{out} exists already; an exported model needs a folder of its own, choose another")
    model = load(run)
    _refuse_plugins(model)
    tokenizer = load_tokenizer(run)
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as fresh:
        write_files(model, fresh)
        save_tokenizer(tokenizer, fresh)
        told = jsons.loads((fresh / CONFIG).read_bytes())
        name = kind_of(model).model.__name__
        here = f"{file_of(ENTRY)}.{name}"
        auto = {"AutoConfig": f"{here}Config", "AutoModelForCausalLM": f"{here}ForCausalLM"}
        (fresh / CONFIG).write_text(json.dumps({**told, "auto_map": auto}, indent=2) + "\n")
        for file, text in bundle().items():
            (fresh / file).write_text(text)
        (fresh / _CARD).write_text(card(run, model))
        return sorted(path.name for path in fresh.iterdir())


def _refuse_plugins(model: LanguageModel) -> None:
    """A mechanism of the user's own would be missing there."""
    for layer in model.layers:
        mechanism: Any = layer.scalars.mechanism  # type: ignore[union-attr]
        for step in (*mechanism.rule.steps, *mechanism.prepare, *mechanism.finish):
            home = getattr(step, "__module__", type(step).__module__)
            if home.split(".")[0] != "keysift":
                raise UnsupportedError(
                    f"{mechanism.name} is computed by {home}, which is no part of keysift and would be missing there; "
                    f"export a model with keysift's own mechanisms"
                )


def card(run: Path, model: LanguageModel) -> str:
    """What others should know: recipe, data, results, limits, as far as the directory tells."""
    found = summary(run) if holds_a_run(run) else None
    kind = kind_of(model).name
    parts = [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- keysift\n- custom_code\n---",
        f"# {run.resolve().name}",
        f"A {kind} of keysift {__version__} with {count(model):,} parameters.",
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        "model = AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)\n"
        "tokenizer = AutoTokenizer.from_pretrained(DIR, trust_remote_code=True)\n```",
        "With keysift installed it needs no trust: `keysift generate DIR --prompt ...`.",
        "## Model",
        _table(_fields(model)),
        "## Recipe and data",
        _recipe(run, found),
        "## Results",
        _results(found),
        "## Limits",
        f"- It was trained on texts of {model.config.context} tokens; how it reads longer ones is not said here.\n"
        "- The code in this directory is keysift's source (Apache-2.0) without its compiled kernels: it computes in "
        "plain torch, slower than keysift itself.\n"
        "- It says what its training text makes likely. Nothing was done to make that true or harmless.\n"
        "- The licence of the weights is for whoever publishes them to say.",
    ]
    return "\n\n".join(parts) + "\n"


def _fields(model: LanguageModel) -> dict[str, Any]:
    return {name: value for name, value in vars(model.config).items() if value is not None}


def _recipe(run: Path, found: Summary | None) -> str:
    said = []
    if (run / ORIGIN).is_file():
        said.append(f"Imported from {_origin(run / ORIGIN)}, weights unchanged but for their type.")
    if found is None:
        return "\n\n".join(said) or "The directory does not say how it was trained."
    shown = {name: found.settings[name] for name in _SHOWN if found.settings.get(name) is not None}
    shown["steps"] = found.saved
    if isinstance(shown.get("batch_tokens"), int):
        shown["training tokens"] = f"{found.saved * shown['batch_tokens']:,}"
    if found.settings.get("init") is not None:
        said.append(f"Its weights began as those of {Path(str(found.settings['init'])).name}.")
    return "\n\n".join([*said, _table(shown)])


def _origin(file: Path) -> str:
    try:
        told = jsons.loads(file.read_bytes())
        return f"{told['imported']} ({told['family']})"
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"{file} does not say what was imported ({error!r}); import the model again") from error


def _results(found: Summary | None) -> str:
    if found is None or found.val_loss is None:
        return "None are recorded."
    bits = "" if found.bits_per_byte is None else f", {found.bits_per_byte:.3f} bits per byte"
    step = found.validations[-1][0]
    loss = f"{found.val_loss:.4f} nats per token{bits}"
    return f"Validation loss {loss}, on held-out text of the same source at step {step}."


def _table(values: dict[str, Any]) -> str:
    lines = [f"| {name} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")

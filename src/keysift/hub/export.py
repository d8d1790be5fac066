"""Export a model as a directory to share: weights, config, tokenizer, the code that runs it, and a model card.

It loads with AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True) where keysift is not installed. The code
is keysift's source (remote_code.py) without the compiled kernels, so it runs in plain torch.
"""

import json
from pathlib import Path
from typing import Any

from keysift import __version__
from keysift.core import safe_json
from keysift.core.disk import atomic_folder
from keysift.core.errors import DataError, UnsupportedError
from keysift.core.markdown import table_head, table_row
from keysift.data.tokenizers.load import load_tokenizer, save_tokenizer
from keysift.hub.remote_code import ENTRY, bundle, file_of
from keysift.models.importing import ORIGIN
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.models.model_type import CONFIG
from keysift.models.registry import kind_of
from keysift.models.save import load, write_model
from keysift.records.runs import RunSummary
from keysift.runs.layout import is_run_directory
from keysift.runs.summary import summary

_CARD = "README.md"
_SHOWN = ("data", "tokenizer", "context", "batch_tokens", "lr", "schedule", "warmup", "weight_decay", "clip", "seed")


def export(run: Path, out: Path) -> list[str]:
    """Write `out`, a new directory; returns the names of its files."""
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise DataError(f"{out} already exists; choose a new directory for the exported model")
    model = load(run)
    _check_mechanisms(model)
    tokenizer = load_tokenizer(run)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as fresh:
        write_model(model, fresh)
        save_tokenizer(tokenizer, fresh)
        config = safe_json.load(fresh / CONFIG)
        name = kind_of(model).model.__name__
        prefix = f"{file_of(ENTRY)}.{name}"
        auto = {
            "AutoConfig": f"{prefix}Config",
            "AutoModel": f"{prefix}Model",
            "AutoModelForCausalLM": f"{prefix}ForCausalLM",
        }
        (fresh / CONFIG).write_text(json.dumps({**config, "auto_map": auto}, indent=2) + "\n")
        for file, text in bundle().items():
            (fresh / file).write_text(text, encoding="utf-8")
        (fresh / _CARD).write_text(card(run, model), encoding="utf-8")
        return sorted(path.name for path in fresh.iterdir())


def _check_mechanisms(model: LanguageModel) -> None:
    """Raise if a mechanism is defined outside keysift: its code would not be exported."""
    for layer in model.layers:
        mechanism: Any = layer.scalars.mechanism  # type: ignore[union-attr]
        for step in (*mechanism.rule.steps, *mechanism.prepare, *mechanism.finish):
            home = getattr(step, "__module__", type(step).__module__)
            if home.split(".")[0] != "keysift":
                raise UnsupportedError(
                    f"{mechanism.name} is computed by {home}, which is not part of keysift and would not be exported; "
                    f"export a model with keysift's own mechanisms"
                )


def card(run: Path, model: LanguageModel) -> str:
    """The model card: sizes, recipe, data, results and limits, as far as they are recorded."""
    run_summary = summary(run) if is_run_directory(run) else None
    kind = kind_of(model).name
    parts = [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- keysift\n- custom_code\n---",
        f"# {run.resolve().name}",
        f"A {kind} model of keysift {__version__} with {count_parameters(model):,} parameters.",
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        "model = AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)\n"
        "tokenizer = AutoTokenizer.from_pretrained(DIR, trust_remote_code=True)\n```",
        "With keysift installed, no remote code is needed: `keysift generate DIR --prompt ...`.",
        "## Model",
        _table(_fields(model)),
        "## Recipe and data",
        _recipe(run, run_summary),
        "## Results",
        _results(run_summary),
        "## Limits",
        f"- It was trained on texts of {model.config.context} tokens; it was not evaluated on longer ones here.\n"
        "- The code in this directory is keysift's source (Apache-2.0) without its compiled kernels: it runs in plain "
        "torch, slower than keysift itself.\n"
        "- It imitates its training text. It was not tuned to be truthful or harmless.\n"
        "- Whoever publishes the weights states their licence.",
    ]
    return "\n\n".join(parts) + "\n"


def _fields(model: LanguageModel) -> dict[str, Any]:
    return {name: value for name, value in vars(model.config).items() if value is not None}


def _recipe(run: Path, run_summary: RunSummary | None) -> str:
    parts = []
    if (run / ORIGIN).is_file():
        parts.append(f"Imported from {_origin(run / ORIGIN)}, weights unchanged except for their dtype.")
    if run_summary is None:
        return "\n\n".join(parts) or "Not recorded."
    shown = {name: run_summary.settings[name] for name in _SHOWN if run_summary.settings.get(name) is not None}
    shown["steps"] = run_summary.saved
    if isinstance(shown.get("batch_tokens"), int):
        shown["training tokens"] = f"{run_summary.saved * shown['batch_tokens']:,}"
    if run_summary.settings.get("init") is not None:
        parts.append(f"Initialized from the weights of {Path(str(run_summary.settings['init'])).name}.")
    return "\n\n".join([*parts, _table(shown)])


def _origin(file: Path) -> str:
    try:
        origin = safe_json.load(file)
        return f"{origin['imported']} ({origin['family']})"
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"{file} does not name the imported model ({error!r}); import the model again") from error


def _results(run_summary: RunSummary | None) -> str:
    if run_summary is None or run_summary.val_loss is None:
        return "Not recorded."
    bits = "" if run_summary.bits_per_byte is None else f", {run_summary.bits_per_byte:.3f} bits per byte"
    step = run_summary.validations[-1][0]
    loss = f"{run_summary.val_loss:.4f} nats per token{bits}"
    return f"Validation loss {loss}, on the validation split of the same source at step {step}."


def _table(values: dict[str, Any]) -> str:
    return "\n".join([*table_head("", ""), *(table_row(name, _cell(value)) for name, value in values.items())])


def _cell(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")

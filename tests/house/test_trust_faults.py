"""Guards against strange input and bad moments, taken away one line at a time: the test beside each must go red."""

import os
from pathlib import Path

import pytest

from tests.house.test_faults import Fault, red

GENERATE, SAMPLING = "tests/cli/test_generate.py", "tests/models/test_generate.py"
SAVE, REPLACING = "tests/models/test_save.py", "tests/models/test_replacing.py"
CACHE, PATHS, LIMITS = "tests/models/test_cache.py", "tests/data/test_paths.py", "tests/train/test_limits.py"

EVERYDAY = [
    Fault(
        "a closed pipe is an error",
        "cli/main.py",
        "except BrokenPipeError:",
        "except ZeroDivisionError:",
        GENERATE,
        "has_enough",
    ),
    Fault(
        "letters ASCII lacks",
        "cli/main.py",
        'stream.reconfigure(errors="backslashreplace")',
        "pass",
        GENERATE,
        "only_ascii",
    ),
    Fault(
        "raw text on a terminal",
        "cli/output.py",
        "sys.stdout.write(shown_text(text))",
        "sys.stdout.write(text)",
        GENERATE,
        "harmless",
    ),
    Fault(
        "cold logits overflow",
        "models/sample.py",
        "(logits_BN - top_B1) / heat_B1",
        "logits_BN / heat_B1",
        GENERATE,
        "extremes",
    ),
    Fault(
        "top_p one token short",
        "models/sample.py",
        "chance_BN.cumsum(-1) - chance_BN >= self.top_p",
        "chance_BN.cumsum(-1) >= self.top_p",
        SAMPLING,
        "filters",
    ),
    Fault("any seed", "models/sampling.py", "if not 0 <= self.seed < SEEDS:", "if False:", SAMPLING, "refusals"),
    Fault(
        "weights of several types",
        "models/save.py",
        "load_state_dict(of_one_type({name: weights.read(name) for name in weights.header})",
        "load_state_dict({name: weights.read(name) for name in weights.header}",
        SAVE,
        "several_types",
    ),
    Fault(
        "all text held back",
        "models/text.py",
        "return max(lengths, default=0)",
        "return len(text)",
        "tests/models/test_text.py",
        "costs_the_same",
    ),
    Fault(
        "all tokens decoded again",
        "data/decoder.py",
        "self._ids = self._ids[self._known :]",
        "self._ids = list(self._ids)",
        "tests/data/test_decoder.py",
        "same_work",
    ),
]
SILENCE = [
    Fault(
        "an empty stop text",
        "models/generate.py",
        "isinstance(self.stop, str) or not all(self.stop)",
        "isinstance(self.stop, str)",
        SAMPLING,
        "refusals",
    ),
    Fault(
        "letters as stop texts",
        "models/generate.py",
        "isinstance(self.stop, str) or not all(self.stop)",
        "not all(self.stop)",
        SAMPLING,
        "refusals",
    ),
    Fault(
        "any row selected",
        "nn/cache.py",
        "if any(not 0 <= number < self.batch for number in numbers):",
        "if False:",
        CACHE,
        "refus",
    ),
    Fault(
        "select of no rows",
        "nn/cache.py",
        "rows.dtype != torch.int64 or not len(rows)",
        "rows.dtype != torch.int64",
        CACHE,
        "refusals",
    ),
    Fault(
        "crop by any shape", "nn/cache.py", "tokens.shape != (self.batch,) or ", "", CACHE, "refused_changes_nothing"
    ),
    Fault(
        "crop by any type",
        "nn/cache.py",
        "(self.batch,) or tokens.dtype != torch.int64",
        "(self.batch,)",
        CACHE,
        "refused_changes_nothing",
    ),
    Fault("negative spare", "models/language.py", "if batch < 1 or spare < 0:", "if batch < 1:", CACHE, "refusals"),
    Fault(
        "a boolean bias",
        "kernels/call.py",
        "if not bias.dtype.is_floating_point:",
        "if False:",
        "tests/kernels/test_attend_refuses.py",
        "",
    ),
    Fault(
        "clip nan",
        "train/config.py",
        "isinstance(value, float) and not math.isfinite(value)",
        "False",
        "tests/train/test_config.py",
        "",
    ),
]
FILES = [
    Fault("depth without weights", "models/save.py", 'sizes["depth"] > len(header)', "False", SAVE, "not_a_model"),
    Fault(
        "sizes without weights",
        "models/save.py",
        "type(size) is int and size > max(elements, 1)",
        "False",
        SAVE,
        "not_a_model",
    ),
    Fault(
        "JSON without a floor",
        "core/jsons.py",
        "except RecursionError:",
        "except ZeroDivisionError:",
        SAVE,
        "not_a_model",
    ),
    Fault(
        "more tokens than the model",
        "runs/text_model.py",
        "if tokenizer.vocab_size > model.config.vocab_size:",
        "if False:",
        "tests/runs/test_text_model.py",
        "",
    ),
    Fault("a file by every name", "data/paths.py", "if number not in seen:", "if True:", PATHS, "circles"),
    Fault("packed zeros are text", "data/paths.py", 'return b"\\0" not in begins', "return True", PATHS, "compressed"),
    Fault(
        "packed bytes are text",
        "data/paths.py",
        "return error.start > len(begins) - 8",
        "return True",
        PATHS,
        "compressed",
    ),
    Fault(
        "null called something else",
        "data/sources.py",
        '"null" if text is None else',
        '"" if False else',
        "tests/data/test_sources.py",
        "",
    ),
    Fault("bombs", "data/files.py", "_refuse_bomb(self._path, self.tell(), self._packed.tell())", "", PATHS, "bomb"),
    Fault("bombs handed on", "data/files.py", "            file.read_ahead()\n", "", PATHS, "bomb"),
    Fault("a line of any length", "data/files.py", "super().readline(_PIECE)", "super().readline()", PATHS, "bomb"),
    Fault(
        "workers look around",
        "data/workers.py",
        '[sys.executable, "-P", "-c", _COMMAND]',
        '[sys.executable, "-c", _COMMAND]',
        "tests/data/test_isolation.py",
        "workers",
    ),
    Fault(
        "runs of a sweep look around",
        "sweep/drive.py",
        '[sys.executable, "-P", "-m"',
        '[sys.executable, "-m"',
        "tests/sweep/test_sweep.py",
        "beside_the_text",
    ),
]
THEIR_OWN = [
    Fault(
        "a link replaced",
        "models/save.py",
        "Path(os.path.realpath(directory))",
        "Path(directory)",
        SAVE,
        "stays_a_link",
    ),
    Fault(
        "two renames",
        "core/disk.py",
        "if exchange(fresh, target):",
        "if False:",
        REPLACING,
        "any_moment and not renames",
    ),
    Fault(
        "checkpoints mixed",
        "models/save.py",
        "os.path.dirname(os.path.realpath(directory / CONFIG))",
        "str(directory)",
        REPLACING,
        "one_checkpoint",
    ),
    Fault(
        "an old model under a finished run",
        "sweep/drive.py",
        "mended = {name: _mended(out / name) for name in runs if holds_a_run(out / name)}",
        "mended: dict[str, str] = {}",
        "tests/sweep/test_sweep.py",
        "leads_to",
    ),
    Fault(
        "a checkpoint that nothing leads to",
        "runs/layout.py",
        "return step if step in made else max(made, default=0)",
        "return max(made, default=0)",
        "tests/runs/test_directory.py",
        "counts_once",
    ),
    Fault(
        "one working name for all writers",
        "core/disk.py",
        '{os.getpid()}-{secrets.token_hex(4)}"\n    try:',
        '0"\n    try:',
        "tests/core/test_disk.py",
        "two_writers",
    ),
    Fault(
        "the demo's run again",
        "cli/demo_text.py",
        'numbered(out.parent / "demo-run") if not path.exists()',
        'numbered(out.parent / "demo-run")',
        "tests/cli/test_train.py",
        "demo_of_text",
    ),
    Fault(
        "a function without a name",
        "mechanisms/temperature.py",
        "rule=Softmax(factor=sharpened)",
        "rule=Softmax(factor=lambda seen_BHT1, *, sharpness: sharpness * seen_BHT1.log())",
        "tests/models/test_copies.py",
        "ssmax",
    ),
    Fault(
        "no rows reach a backend",
        "kernels/attend.py",
        "if call.q.shape[0] == 0:",
        "if False:",
        "tests/kernels/test_transforms.py",
        "no_rows",
    ),
    Fault("any number of parameters", "train/limits.py", "if least > LARGEST:", "if False:", LIMITS, "dry_run"),
    Fault(
        "any memory",
        "core/memory.py",
        "if room is not None and size > room:",
        "if False:",
        "tests/core/test_memory.py",
        "",
    ),
]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("SOAK"), reason="guards are taken away in `make soak`")
@pytest.mark.parametrize("fault", [*EVERYDAY, *SILENCE, *FILES, *THEIR_OWN], ids=lambda fault: fault.name)
def test_a_guard_taken_away_is_missed(fault: Fault, tmp_path: Path) -> None:
    done = red(tmp_path, fault)
    assert done.returncode == 1, f"the suite stayed green:\n{done.stdout[-2000:]}"
    assert "failed" in done.stdout

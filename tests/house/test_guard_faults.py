"""Guards against malformed input and interruptions, removed one at a time: the tests named beside each must fail."""

import os

import pytest

from tests.house.seeded import Fault, is_caught, seed

GENERATE, SAMPLING = "tests/cli/test_generate.py", "tests/models/test_generate.py"
SAVE, REPLACING = "tests/models/test_save.py", "tests/models/test_replacing.py"
CACHE, PATHS, LIMITS = "tests/models/test_cache.py", "tests/data/test_paths.py", "tests/train/test_preflight.py"

OUTPUT_AND_SAMPLING = [
    Fault(
        "a closed pipe is an error",
        "cli/main.py",
        "BrokenPipeError",
        "ZeroDivisionError",
        GENERATE,
        "closed_pipe",
    ),
    Fault(
        "output that the terminal cannot encode",
        "cli/main.py",
        'stream.reconfigure(errors="backslashreplace")',
        "pass",
        GENERATE,
        "ascii_terminal",
    ),
    Fault(
        "unescaped text on a terminal",
        "cli/terminal/output.py",
        "sys.stdout.write(escape_text(text))",
        "sys.stdout.write(text)",
        GENERATE,
        "control_characters",
    ),
    Fault(
        "logits divided by a tiny temperature overflow",
        "models/sampler.py",
        "(logits_BN - top_B1) / heat_B1",
        "logits_BN / heat_B1",
        GENERATE,
        "extreme_sampling",
    ),
    Fault(
        "top_p one token short",
        "models/sampler.py",
        "chance_BN.cumsum(-1) - chance_BN >= self.top_p",
        "chance_BN.cumsum(-1) >= self.top_p",
        SAMPLING,
        "filters",
    ),
    Fault("any seed", "models/sampling_settings.py", "not 0 <= self.seed < SEEDS", "False", SAMPLING, "refusals"),
    Fault(
        "weights of several dtypes",
        "models/save.py",
        "to_common_dtype({name: weights.read(name) for name in weights.header})",
        "{name: weights.read(name) for name in weights.header}",
        SAVE,
        "mixed_dtypes",
    ),
    Fault(
        "all text withheld while streaming",
        "models/text_stream.py",
        "return max(lengths, default=0)",
        "return len(text)",
        "tests/models/test_text_stream.py",
        "cost_per_token",
    ),
    Fault(
        "all tokens decoded again",
        "data/tokenizers/decoder.py",
        "self._ids = self._ids[self._known :]",
        "self._ids = list(self._ids)",
        "tests/data/test_decoder.py",
        "same_work",
    ),
]
ARGUMENTS = [
    Fault(
        "an empty stop string",
        "models/generate.py",
        "isinstance(self.stop, str) or not all(self.stop)",
        "isinstance(self.stop, str)",
        SAMPLING,
        "refusals",
    ),
    Fault(
        "a stop string taken as a list of letters",
        "models/generate.py",
        "isinstance(self.stop, str) or not all(self.stop)",
        "not all(self.stop)",
        SAMPLING,
        "refusals",
    ),
    Fault(
        "select of any row",
        "nn/cache.py",
        "any(not 0 <= number < self.batch for number in numbers)",
        "False",
        CACHE,
        "refus",
    ),
    Fault("select of no rows", "nn/cache.py", "not len(rows)", "False", CACHE, "refusals", inside="select"),
    Fault("crop by any shape", "nn/cache.py", "tokens.shape != (self.batch,)", "False", CACHE, "refused_operations"),
    Fault(
        "crop by any type",
        "nn/cache.py",
        "tokens.dtype != torch.int64",
        "False",
        CACHE,
        "refused_operations",
        inside="crop",
    ),
    Fault("negative spare", "models/language_model.py", "batch < 1 or spare < 0", "batch < 1", CACHE, "refusals"),
    Fault(
        "a boolean bias",
        "kernels/call.py",
        "not bias.dtype.is_floating_point",
        "False",
        "tests/kernels/test_attend_refuses.py",
        "",
    ),
    Fault(
        "a non-finite setting",
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
        "JSON nested without limit",
        "core/safe_json.py",
        "RecursionError",
        "ZeroDivisionError",
        SAVE,
        "not_a_model",
    ),
    Fault(
        "a tokenizer larger than the vocabulary",
        "models/text_model.py",
        "tokenizer.vocab_size > model.config.vocab_size",
        "False",
        "tests/models/test_text_model.py",
        "",
    ),
    Fault("a file read once per link", "data/paths.py", "number not in seen", "True", PATHS, "link_cycles"),
    Fault(
        "compressed data with zeros read as text",
        "data/paths.py",
        'return b"\\0" not in head',
        "return True",
        PATHS,
        "compressed",
    ),
    Fault(
        "compressed bytes read as text",
        "data/paths.py",
        "return error.start > len(head) - 8",
        "return True",
        PATHS,
        "compressed",
    ),
    Fault(
        "null reported as another type",
        "data/documents.py",
        "text is None",
        "False",
        "tests/data/test_sources.py",
        "",
    ),
    Fault(
        "bombs", "data/files.py", "_refuse_bomb(self._path, self.tell(), self._packed.tell())", "None", PATHS, "bomb"
    ),
    Fault("a decompression bomb passed on", "data/files.py", "file.read_ahead()", "None", PATHS, "bomb"),
    Fault("a line of any length", "data/files.py", "super().readline(_PIECE)", "super().readline()", PATHS, "bomb"),
    Fault(
        "workers import from the current folder",
        "data/workers.py",
        '"-P"',
        '"-u"',
        "tests/data/test_isolation.py",
        "workers",
    ),
    Fault(
        "runs of a sweep import from the current folder",
        "sweep/launch.py",
        '"-P"',
        '"-u"',
        "tests/sweep/test_sweep.py",
        "beside_the_text",
    ),
]
CONCURRENCY_AND_LIMITS = [
    Fault(
        "a link to a model replaced by a folder",
        "models/save.py",
        "Path(os.path.realpath(directory))",
        "Path(directory)",
        SAVE,
        "stays_a_link",
    ),
    Fault(
        "a model replaced by two renames",
        "core/disk.py",
        "exchange(fresh, target)",
        "False",
        REPLACING,
        "any_moment and not renames",
    ),
    Fault(
        "files of two checkpoints mixed",
        "models/save.py",
        "os.path.dirname(os.path.realpath(directory / CONFIG))",
        "str(directory)",
        REPLACING,
        "one_checkpoint",
    ),
    Fault(
        "an old model in a finished run",
        "sweep/drive.py",
        "_recover(out / name)",
        '""',
        "tests/sweep/test_sweep.py",
        "link_of_a_finished_run",
    ),
    Fault(
        "an unreferenced checkpoint counted",
        "runs/layout.py",
        "return step if step in steps else max(steps, default=0)",
        "return max(steps, default=0)",
        "tests/runs/test_directory.py",
        "counts_once",
    ),
    Fault(
        "one temporary name for all writers",
        "core/disk.py",
        'f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"',
        'f"{prefix}0"',
        "tests/core/test_disk.py",
        "two_writers",
    ),
    Fault(
        "the run of an earlier demo overwritten",
        "cli/demos/text.py",
        "not path.exists()",
        "True",
        "tests/cli/test_train.py",
        "demo_of_text",
    ),
    Fault(
        "a mechanism that cannot be pickled",
        "mechanisms/temperature.py",
        "Softmax(factor=ssmax_factor)",
        "Softmax(factor=lambda count_BHT1, *, sharpness: sharpness * count_BHT1.log())",
        "tests/models/test_copies.py",
        "ssmax",
    ),
    Fault(
        "an empty batch reaches a backend",
        "kernels/attend.py",
        "call.q.shape[0] == 0",
        "False",
        "tests/kernels/test_transforms.py",
        "empty_batch",
    ),
    Fault("any number of parameters", "train/preflight.py", "parameters > MAX_COUNTED", "False", LIMITS, "dry_run"),
    Fault(
        "any memory",
        "core/memory.py",
        "free is not None and size > free",
        "False",
        "tests/core/test_memory.py",
        "",
    ),
]


each_guard = pytest.mark.parametrize(
    "fault", [*OUTPUT_AND_SAMPLING, *ARGUMENTS, *FILES, *CONCURRENCY_AND_LIMITS], ids=lambda fault: fault.name
)


@each_guard
def test_the_fault_applies(fault: Fault) -> None:
    seed(fault)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("SOAK"), reason="guards are removed in `make soak`")
@each_guard
def test_a_missing_guard_is_caught(fault: Fault) -> None:
    is_caught(fault)

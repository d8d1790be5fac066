"""Fuzz the command line: run the known cases, then random cases until the time is up. Prints faults and counts."""

import argparse
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from keysift.cli.main import VERBS, _main
from tests.fuzz import cases, inputs, mutate, sandbox

TIMEOUT = 90.0  # seconds per case; most take less than one


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="stop each seed after this time")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="seeds of the random cases, one after another")
    parser.add_argument("--cases", type=int, default=10**9, help="stop each seed after this many cases")
    parser.add_argument("--only", type=int, help="run only the random case with this number, and show its output")
    parser.add_argument("--out", type=Path, help="write the counts to this JSON file")
    parser.add_argument("--show", type=Path, help="print the counts in this JSON file as Markdown, and run no cases")
    args = parser.parse_args()
    if args.show is not None:
        sys.stdout.write(markdown(json.loads(args.show.read_text())) + "\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="keysift-fuzz-") as folder:
        originals = prepare(Path(folder))
        counts = _sum(
            [
                fuzz(Path(folder), originals, seed, seconds=args.seconds, max_cases=args.cases, only=args.only)
                for seed in args.seed
            ]
        )
    if args.out is not None:
        args.out.write_text(json.dumps(counts, indent=1) + "\n")
    sys.stdout.write(json.dumps(counts) + "\n")
    return 1 if counts["faults"] else 0


def markdown(counts: dict[str, Any]) -> str:
    """Counts of a run as Markdown."""
    verbs = ", ".join(f"{verb} {count}" for verb, count in counts["verbs"].items())
    codes = ", ".join(f"{count} exited with {code}" for code, count in counts["exit_codes"].items())
    return (
        f"- {counts['cases']:,} cases in {counts['seconds']:,.0f} s (seeds {', '.join(map(str, counts['seeds']))}), "
        f"{counts['faults']} faults; the slowest took {counts['slowest_case_seconds']} s\n"
        f"- by command: {verbs}\n- exit codes: {codes}"
    )


def prepare(folder: Path) -> dict[str, Path]:
    """Set the environment of all cases, and make their inputs."""
    # No colours and no bars, so every control byte on the terminal comes from an input.
    os.environ.update(TERM="dumb", NO_COLOR="1", XDG_CACHE_HOME=str(folder / "cache"), HOME=str(folder), COLUMNS="100")
    os.environ.update(HF_HOME=str(folder / "cache" / "hf"), HF_HUB_OFFLINE="1")  # no network access
    return _make_inputs(folder / "inputs")


def fuzz(
    folder: Path, originals: dict[str, Path], seed: int, *, seconds: float, max_cases: int, only: int | None = None
) -> dict[str, Any]:
    """Run cases in `folder` until `seconds` or `max_cases` is reached, or random case `only`. Returns the counts."""
    marker = folder / inputs.MARKER
    payloads = inputs.payloads(marker)
    start, verbs, codes, faults = time.monotonic(), Counter[str](), Counter[int](), 0
    slowest, number = 0.0, 0
    corpus_size = 0 if only is not None else len(cases.corpus(originals, folder))
    while number < max_cases and time.monotonic() - start < seconds:
        case_folder = folder / f"case-{number}"
        copies = {name: mutate.copy(path, case_folder / name) for name, path in originals.items()}
        out = case_folder / "out"
        out.mkdir()
        if number < corpus_size:
            label = f"corpus {number}"
            case, file = cases.corpus(copies, out)[number]
            assert case.reads is not None
            mutation = mutate.replace_by_pipe(copies[case.reads] / file)
        else:
            case_number = number - corpus_size if only is None else only
            label = f"seed {seed}, case {case_number}"
            rng = random.Random(f"{seed} {case_number}")
            case = cases.draw(rng, copies, out)
            mutation = mutate.mutate(copies[case.reads], rng, payloads) if case.reads else "hostile arguments"
        # Python files in the working directory, which the command must not import.
        for name in ("numpy.py", "random.py", "json.py"):
            (case_folder / name).write_bytes(payloads[-1])
        before = sandbox.state(folder)
        result = sandbox.run(lambda argv=case.argv: _main(argv), case_folder, timeout=TIMEOUT)  # type: ignore[misc]
        # Reading a tokenized corpus writes verified.json into it.
        verified = [path / "verified.json" for path in copies.values()]
        violations = sandbox.find_violations(result, before, folder, [*case.writes, *verified, folder / "cache"])
        verbs[case.argv[0] if case.reads or case.argv[0] in VERBS else "unknown command"] += 1
        codes[result.code] += 1
        slowest = max(slowest, result.seconds)
        if violations or only is not None:
            faults += bool(violations)
            tail = result.output.decode(errors="backslashreplace")[-600 if only is None else -3000 :]
            sys.stdout.write(f"{label}: {case.argv!r}, {mutation}: {'; '.join(violations)}\n{tail}\n")
        shutil.rmtree(case_folder, ignore_errors=True)
        number += 1
        if only is not None:
            break
    return {
        "seeds": [seed],
        "cases": number,
        "faults": faults,
        "seconds": round(time.monotonic() - start, 1),
        "slowest_case_seconds": round(slowest, 1),
        "verbs": dict(sorted(verbs.items())),
        "exit_codes": {str(code): count for code, count in sorted(codes.items())},
    }


def _sum(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of several seeds as one."""
    total = counts[0]
    for other in counts[1:]:
        for name in ("seeds", "cases", "faults", "seconds"):
            total[name] += other[name]
        total["slowest_case_seconds"] = max(total["slowest_case_seconds"], other["slowest_case_seconds"])
        for name in ("verbs", "exit_codes"):
            total[name] = dict(sorted((Counter(total[name]) + Counter(other[name])).items()))
    return total


def _make_inputs(folder: Path) -> dict[str, Path]:
    """Make the inputs in a forked process, then import what it imported.

    The cases are forked from this process. It must not compute with torch: the threads of an OpenMP pool do not exist
    in a fork, which waits for them forever.
    """
    made = folder.with_suffix(".json")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            originals = {name: str(path) for name, path in inputs.make(folder).items()}
            made.write_text(json.dumps([originals, [name for name in sys.modules if name.startswith("keysift.")]]))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, "the inputs could not be made"
    originals, modules = json.loads(made.read_text())
    for name in modules:
        importlib.import_module(name)
    return {name: Path(path) for name, path in originals.items()}


if __name__ == "__main__":
    sys.exit(main())

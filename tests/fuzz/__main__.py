"""Run cases until the time is over; one line for each fault, and the counts at the end."""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz import cases, material, mutate, sandbox

TIMEOUT = 90.0  # seconds of one case; most take well below one


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    flags.add_argument("--seconds", type=float, default=120.0)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--cases", type=int, default=10**9, help="stop after so many")
    flags.add_argument("--only", type=int, help="run one case by its number, and show what it says")
    flags.add_argument("--out", type=Path, help="write the counts here as JSON")
    flags.add_argument("--show", type=Path, help="say in words what --out wrote, and run nothing")
    asked = flags.parse_args()
    if asked.show is not None:
        sys.stdout.write(shown(json.loads(asked.show.read_text())) + "\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="keysift-fuzz-") as place:
        found = fuzz(Path(place), asked.seed, seconds=asked.seconds, most=asked.cases, only=asked.only)
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if found["faults"] else 0


def shown(found: dict[str, Any]) -> str:
    """The counts of a run as Markdown."""
    verbs = ", ".join(f"{verb} {count}" for verb, count in found["verbs"].items())
    codes = ", ".join(f"{count} ended with {code}" for code, count in found["exit_codes"].items())
    return (
        f"- {found['cases']:,} cases in {found['seconds']:,.0f} s (seed {found['seed']}), {found['faults']} faults; "
        f"the slowest took {found['slowest_case_seconds']} s\n- by verb: {verbs}\n- exit codes: {codes}"
    )


def fuzz(place: Path, seed: int, *, seconds: float, most: int, only: int | None = None) -> dict[str, Any]:
    # Without colours and bars of our own, a control byte on the terminal is somebody else's.
    os.environ.update(TERM="dumb", NO_COLOR="1", XDG_CACHE_HOME=str(place / "cache"), HOME=str(place), COLUMNS="100")
    os.environ.update(HF_HOME=str(place / "cache" / "hf"), HF_HUB_OFFLINE="1")  # nothing is looked for on the network
    made = material.make(place / "material")
    marker = place / material.MARKER
    planted = material.payloads(marker)
    began, verbs, codes, faults = time.monotonic(), Counter[str](), Counter[int](), 0
    slowest, number = 0.0, 0
    while number < most and time.monotonic() - began < seconds:
        rng = random.Random(f"{seed} {number if only is None else only}")
        room = place / f"case-{number}"
        copies = {name: mutate.copy(path, room / name) for name, path in made.items()}
        out = room / "out"
        out.mkdir()
        case = cases.draw(rng, copies, out)
        done = mutate.mutate(copies[case.reads], rng, planted) if case.reads else "other words"
        for name in ("numpy.py", "random.py", "json.py"):
            (room / name).write_bytes(planted[-1])
        before = sandbox.state(place)
        ended = sandbox.run(lambda argv=case.argv: _keysift(argv), room, timeout=TIMEOUT)  # type: ignore[misc]
        # A corpus remembers beside itself that its hashes were right.
        remembered = [path / "verified.json" for path in copies.values()]
        wrong = sandbox.faults(ended, before, place, [*case.writes, *remembered, place / "cache"])
        verbs[case.argv[0] if case.reads or case.argv[0] in KNOWN else "unknown verb"] += 1
        codes[ended.code] += 1
        slowest = max(slowest, ended.seconds)
        if wrong or only is not None:
            faults += bool(wrong)
            sys.stdout.write(f"case {number if only is None else only}: {case.argv!r}, {done}: {'; '.join(wrong)}\n")
            sys.stdout.write(ended.said.decode(errors="backslashreplace")[-3000 if only is not None else -600 :] + "\n")
        mutate.shutil.rmtree(room, ignore_errors=True)
        number += 1
        if only is not None:
            break
    return {
        "seed": seed,
        "cases": number,
        "faults": faults,
        "seconds": round(time.monotonic() - began, 1),
        "slowest_case_seconds": round(slowest, 1),
        "verbs": dict(sorted(verbs.items())),
        "exit_codes": {str(code): count for code, count in sorted(codes.items())},
    }


def _keysift(argv: list[str]) -> int:
    from keysift.cli.main import _main

    return _main(argv)


def _verbs() -> tuple[str, ...]:
    from keysift.cli.main import VERBS

    return VERBS


KNOWN = _verbs()

if __name__ == "__main__":
    sys.exit(main())

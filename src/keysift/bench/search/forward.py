"""Forward pass of a whole model with infinite tiles, against a Transformer."""

from dataclasses import replace
from functools import partial

from keysift.bench.collector import Collector
from keysift.bench.contestants import ModelCase
from keysift.bench.model_cases import EXPANDED, INFINITE_SHARE, VOCABULARY, matching_transformer, multiscreen
from keysift.bench.timing import Turns, interleave, median_ratio, row
from keysift.bench.training_step import random_tokens
from keysift.records.bench import at_least


def whole_forward(results: Collector, psi: int, length: int, *, full: bool) -> None:
    """Add rows and a target for a forward pass of a whole model. The Transformer needs minutes, so each runs once."""
    plain, with_infinite = multiscreen(psi), multiscreen(psi, infinite=INFINITE_SHARE)
    name = f"Multiscreen, {INFINITE_SHARE:.1%} of its tiles infinite, r = 0.5"
    cases = {
        "infinite": ModelCase(name, with_infinite, EXPANDED),
        "scan": ModelCase(f"{name}, every key scanned", with_infinite, replace(EXPANDED, search="scan")),
        "transformer": ModelCase("Transformer", matching_transformer(plain), full_softmax=True),
    }
    text = random_tokens(1, length)
    turns: Turns = {key: partial(case.last_logits, text) for key, case in cases.items()}
    label = f"forward, psi = {psi}, {length:,} tokens"
    times = results.measure_once(label, lambda: interleave(turns, 3, limit=4.0))
    ours, theirs = times["infinite"], times["transformer"]
    for case in ("infinite", "scan"):
        timed = row(cases[case].name, "forward", length, times[case], against="Transformer", theirs=theirs)
        results.rows.append(timed)
    results.notes.append(
        f"forward: an untrained model on random tokens of {VOCABULARY}, so the keys of a tile cluster by token, and "
        "groups refuse most of them from 32,768 tokens on. Keys without clusters are scanned"
    )
    target = f"psi = {psi}, T = {length:,}, forward: {name}, against the Transformer"
    results.targets.append(at_least(target, median_ratio(theirs, ours), 20.0, full_size=full))

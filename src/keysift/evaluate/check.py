"""One mechanism, checked in seconds: its promises, its gradients, and every backend that says it can run it."""

import torch

from keysift.core.config import config
from keysift.core.errors import DisagreementError, UnsupportedError
from keysift.evaluate import gradients, promises
from keysift.evaluate.agreement import draw, no_worse_than_plain
from keysift.kernels.attend import BACKENDS, explain
from keysift.mechanisms.rules import RowMap
from keysift.mechanisms.spec import Mechanism, Promise

LENGTHS = ((1, 9), (40, 40), (70, 70))  # a decode step, and lengths that end inside a block


@config
class Line:
    """One thing that was tried: what the spec says, what was found, and an example."""

    name: str
    says: str
    found: str
    right: bool
    example: str


@config
class Checked:
    mechanism: str
    promises: tuple[Line, ...]
    gradients: tuple[Line, ...]
    backends: tuple[Line, ...]

    @property
    def right(self) -> bool:
        return all(line.right for line in (*self.promises, *self.gradients, *self.backends))


def check(mechanism: Mechanism) -> Checked:
    return Checked(
        mechanism=mechanism.name,
        promises=(*(_promise(mechanism, promise) for promise in Promise), *_type(mechanism)),
        gradients=_gradients(mechanism),
        backends=tuple(_backend(mechanism, backend) for backend in BACKENDS.names() if backend != "dense"),
    )


def _promise(mechanism: Mechanism, promise: Promise) -> Line:
    verdict = promises.judge(mechanism, promise)
    claimed = promise in mechanism.holds
    found = {True: "holds", False: "refuted", None: "neither kept nor refuted"}[verdict.kept]
    return Line(
        name=promise.name.lower(),
        says="holds" if claimed else "does not hold",
        found=found,
        right=verdict.kept == claimed,
        example=verdict.example,
    )


def _type(mechanism: Mechanism) -> list[Line]:
    """What follows from the rule's type alone; a RowMap says nothing of itself."""
    if isinstance(mechanism.rule, RowMap):
        return []
    kind = type(mechanism.rule).__name__
    pairs = ((Promise.ABSOLUTE, mechanism.rule.absolute), (Promise.SINGLE_PASS, mechanism.rule.single_pass))
    return [
        Line(
            name=f"{promise.name.lower()} by type",
            says="holds" if promise in mechanism.holds else "does not hold",
            found="holds" if follows else "refuted",
            right=follows == (promise in mechanism.holds),
            example=f"the rule is {kind}: {'' if follows else 'not '}{promise.label}, whatever its functions are",
        )
        for promise, follows in pairs
    ]


def _gradients(mechanism: Mechanism) -> tuple[Line, ...]:
    tried = (
        ("finite differences", gradients.faults(mechanism)),
        ("queries that see nothing", gradients.faults_of_empty_rows(mechanism)),
    )
    return tuple(
        Line(
            name=name,
            says="agrees",
            found="agrees" if not faults else "disagrees",
            right=not faults,
            example="; ".join(faults) or ", ".join(mechanism.differentiable),
        )
        for name, faults in tried
    )


def _backend(mechanism: Mechanism, backend: str) -> Line:
    """Agreement with the definition where the backend takes the call; a backend that declines says why."""
    ran = []
    for queries, keys in LENGTHS:
        draws = [draw(mechanism, queries, keys, seed=seed) for seed in range(3)]
        q, k, v = (draws[0][name].float() for name in "qkv")
        try:
            explain(mechanism, q, k, v, backend=backend)
        except UnsupportedError as error:
            reason = str(error).split(f"({backend}: ", 1)[-1].rsplit("); pass", 1)[0]
            return Line(name=backend, says="declines", found="declines", right=True, example=reason)
        try:
            no_worse_than_plain(mechanism, *draws, backend=backend, dtype=torch.float32)
        except DisagreementError as error:
            where = f"{queries} queries, {keys} keys: {error}"
            return Line(name=backend, says="agrees", found="disagrees", right=False, example=where)
        ran.append(f"{queries} x {keys}")
    said = f"value and every gradient, {', '.join(ran)} queries x keys"
    return Line(name=backend, says="agrees", found="agrees", right=True, example=said)

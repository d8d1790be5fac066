"""Check one mechanism in seconds: its promises, its gradients, and every backend that accepts it."""

import torch

from keysift.core.config import config
from keysift.core.errors import DisagreementError, UnsupportedError
from keysift.kernels.attend import BACKENDS, explain
from keysift.mechanisms.rules import RowMap
from keysift.mechanisms.spec import Mechanism, Promise
from keysift.verify import gradients, promises
from keysift.verify.agreement import QUERIES_AND_KEYS, check_agreement, draw_several


@config
class CheckLine:
    """Result of one check: what the spec states, what was observed, and an example."""

    name: str
    stated: str
    observed: str
    correct: bool
    example: str


@config
class MechanismCheck:
    """Results of all checks of a mechanism."""

    mechanism: str
    promises: tuple[CheckLine, ...]
    gradients: tuple[CheckLine, ...]
    backends: tuple[CheckLine, ...]

    @property
    def correct(self) -> bool:
        return all(line.correct for line in (*self.promises, *self.gradients, *self.backends))


def check(mechanism: Mechanism) -> MechanismCheck:
    """Run all checks of a mechanism."""
    return MechanismCheck(
        mechanism=mechanism.name,
        promises=(*(_promise(mechanism, promise) for promise in Promise), *_promises_of_rule(mechanism)),
        gradients=_gradients(mechanism),
        backends=tuple(check_backend(mechanism, backend) for backend in BACKENDS.names() if backend != "dense"),
    )


def _promise(mechanism: Mechanism, promise: Promise) -> CheckLine:
    verdict = promises.check_promise(mechanism, promise)
    claimed = promise in mechanism.holds
    observed = {True: "holds", False: "refuted", None: "neither confirmed nor refuted"}[verdict.kept]
    return CheckLine(
        name=promise.name.lower(),
        stated="holds" if claimed else "does not hold",
        observed=observed,
        correct=verdict.kept == claimed,
        example=verdict.example,
    )


def _promises_of_rule(mechanism: Mechanism) -> list[CheckLine]:
    """Promises that follow from the type of the rule; nothing follows from a RowMap."""
    if isinstance(mechanism.rule, RowMap):
        return []
    kind = type(mechanism.rule).__name__
    pairs = ((Promise.ABSOLUTE, mechanism.rule.absolute), (Promise.SINGLE_PASS, mechanism.rule.single_pass))
    return [
        CheckLine(
            name=f"{promise.name.lower()} by type",
            stated="holds" if promise in mechanism.holds else "does not hold",
            observed="holds" if follows else "refuted",
            correct=follows == (promise in mechanism.holds),
            example=f"the rule is {kind}: {'' if follows else 'not '}{promise.label}, whatever its functions are",
        )
        for promise, follows in pairs
    ]


def _gradients(mechanism: Mechanism) -> tuple[CheckLine, ...]:
    checks = (
        ("finite differences", gradients.faults(mechanism)),
        ("queries with no visible keys", gradients.faults_of_empty_rows(mechanism)),
    )
    return tuple(
        CheckLine(
            name=name,
            stated="agrees",
            observed="agrees" if not faults else "disagrees",
            correct=not faults,
            example="; ".join(faults) or ", ".join(mechanism.differentiable),
        )
        for name, faults in checks
    )


def check_backend(mechanism: Mechanism, backend: str) -> CheckLine:
    """Agreement of a backend with the definition, or its reason for declining."""
    sizes = []
    for queries, keys in QUERIES_AND_KEYS:
        draws = draw_several(mechanism, queries, keys)
        q, k, v = (draws[0][name].float() for name in "qkv")
        try:
            explain(mechanism, q, k, v, backend=backend)
        except UnsupportedError as error:
            reason = str(error).split(f"({backend}: ", 1)[-1].rsplit("); pass", 1)[0]
            return CheckLine(name=backend, stated="declines", observed="declines", correct=True, example=reason)
        try:
            check_agreement(mechanism, *draws, backend=backend, dtype=torch.float32)
        except DisagreementError as error:
            where = f"{queries} queries, {keys} keys: {error}"
            return CheckLine(name=backend, stated="agrees", observed="disagrees", correct=False, example=where)
        sizes.append(f"{queries} x {keys}")
    example = f"value and every gradient, {', '.join(sizes)} queries x keys"
    return CheckLine(name=backend, stated="agrees", observed="agrees", correct=True, example=example)

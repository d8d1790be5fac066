"""Mechanisms by name, those of other packages included: found by an entry point, or by the module that registers them.

    [project.entry-points."keysift.mechanisms"]
    cosine_gate = "mypackage.attention:COSINE_GATE"

An entry point leads to a `Mechanism`, which is registered, or to a module, which registers its own when it is imported.
Entry points are read when a name is not known otherwise, or when all mechanisms are listed.
"""

import importlib
import sys
from functools import cache
from importlib.metadata import entry_points

from keysift.core.errors import ConfigError, UnknownNameError
from keysift.core.registry import nearest
from keysift.mechanisms.spec import MECHANISMS, WRAPPERS, Mechanism, register

GROUP = "keysift.mechanisms"


@cache
def discover() -> None:
    """Register what installed packages offer. Once: a package installed later is found by the next process."""
    for entry in entry_points(group=GROUP):
        found = entry.load()
        if isinstance(found, Mechanism) and found.name not in MECHANISMS:
            register(found)


def find(mechanism: str | Mechanism) -> Mechanism:
    """A mechanism by name. `name+wrapper` wraps any of them: "screening+value_gate"."""
    if isinstance(mechanism, Mechanism):
        return mechanism
    if mechanism not in MECHANISMS:
        discover()
    if mechanism in MECHANISMS or "+" not in mechanism:
        return _registered(mechanism)
    inner, wrapper = mechanism.rsplit("+", 1)
    return WRAPPERS.find(wrapper)(find(inner))


def _registered(name: str) -> Mechanism:
    if name in MECHANISMS:
        return MECHANISMS.find(name)
    known = MECHANISMS.names()
    raise UnknownNameError(
        f"no mechanism is called {name!r}; {nearest(name, known)}known: {', '.join(known)}; "
        f"one of your own is found once its module is imported (on the command line: --plugin MODULE) "
        f"or through an entry point {GROUP!r}"
    )


def everything() -> list[Mechanism]:
    discover()
    return list(MECHANISMS)


def load_module(name: str) -> None:
    """Import a module that registers mechanisms; one in the current folder is found too, since it was asked for."""
    sys.path.insert(0, "")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise ConfigError(
            f"--plugin {name}: no such module, here or among the installed packages; "
            f"pass the name as `import` takes it, e.g. --plugin mypackage.attention"
        ) from error
    finally:
        sys.path.remove("")

"""Look up mechanisms by name, including those of other packages, found by entry point or by importing a module.

    [project.entry-points."keysift.mechanisms"]
    cosine_gate = "mypackage.attention:COSINE_GATE"

An entry point refers to a `Mechanism`, which is then registered, or to a module that registers its mechanisms when it
is imported. Entry points are read when a name is unknown, or when all mechanisms are listed.
"""

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points

from keysift.core.errors import ConfigError, UnknownNameError
from keysift.core.registry import suggestions
from keysift.mechanisms.spec import MECHANISMS, WRAPPERS, Mechanism, register

GROUP = "keysift.mechanisms"


@cache
def discover() -> None:
    """Register the mechanisms of installed packages, once per process."""
    for entry in entry_points(group=GROUP):
        loaded = entry.load()
        if isinstance(loaded, Mechanism) and loaded.name not in MECHANISMS:
            register(loaded)


def find(mechanism: str | Mechanism) -> Mechanism:
    """A mechanism by name. `name+wrapper` applies a wrapper, e.g. "screening+value_gate"."""
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
    raise UnknownNameError(
        f"no mechanism is called {name!r}; {suggestions(name, MECHANISMS.names())}; "
        f"for your own mechanism, import its module first (on the command line: --plugin MODULE) "
        f"or declare an entry point in {GROUP!r}"
    )


def all_mechanisms() -> list[Mechanism]:
    """All registered mechanisms, including those of installed packages."""
    discover()
    return list(MECHANISMS)


_loaded: dict[str, None] = {}


def loaded_plugins() -> tuple[str, ...]:
    """Names of the modules that `load_module` imported in this process, in order."""
    return tuple(_loaded)


def require_plugins(plugins: Sequence[str], where: str) -> None:
    """Raise ConfigError if `where` was written with plugins that this process has not imported. Imports nothing."""
    missing = [name for name in plugins if name not in sys.modules]
    if missing:
        flags = " ".join(f"--plugin {name}" for name in missing)
        raise ConfigError(
            f"{where} uses a mechanism of the module {' and '.join(missing)}, which is not loaded; pass {flags}, or in "
            f"Python import it first"
        )


def load_module(name: str) -> None:
    """Import a module that registers mechanisms, from the installed packages or the current folder."""
    sys.path.insert(0, "")
    try:
        importlib.import_module(name)
        _loaded[name] = None
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise ConfigError(
            f"--plugin {name}: no such module in the current folder or the installed packages; "
            f"pass a module name, e.g. --plugin mypackage.attention"
        ) from error
    finally:
        sys.path.remove("")

"""`keysift VERB ...`. A verb is a module with `Args` (its flags, with their help) and `run(args)`.

A KeysiftError becomes one line on stderr and exit code 2: a user's mistake is not a traceback.
"""

import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO, TextIOWrapper
from types import ModuleType
from typing import Annotated, Any, TextIO, Union

import tyro

from keysift.cli import output
from keysift.cli.flags import RULES
from keysift.core.errors import ConfigError, KeysiftError, UnknownNameError
from keysift.core.registry import nearest
from keysift.core.shown import shown
from keysift.core.threads import Busy, Choice, choose, examine, settle

VERBS = (
    "mechanisms",
    "weigh",
    "check",
    "doctor",
    "demo",
    "play",
    "presets",
    "generate",
    "data",
    "import",
    "export",
    "train",
    "runs",
    "sweep",
    "bench",
    "eval",
    "report",
    "inspect",
    "compare",
)


_MODULES = {"import": "import_model"}  # a reserved word is no name of a module

# Of these, a sweep leaves computing to its runs, which share the cores; doctor says what the others would do.
COMPUTING = ("check", "train", "generate", "demo", "bench", "sweep", "eval", "report", "inspect", "compare", "doctor")
_BUSY = Busy()
PLUGINS = "KEYSIFT_PLUGINS"
_THREADS = "--threads N computes with N threads; by default as many as there are free cores."
_ABOUT = (
    "Attention that can say no. --plugin MODULE, anywhere, imports a module with mechanisms of your own. "
    f"Verbs that compute: {_THREADS}"
)


def main(argv: list[str] | None = None) -> None:
    sys.exit(_main(sys.argv[1:] if argv is None else argv))


def parse(argv: list[str]) -> Any:
    """The arguments of a verb, as its `run` takes them. A value that a config refuses is its KeysiftError."""
    if argv and argv[0] not in VERBS and not argv[0].startswith("-"):
        raise UnknownNameError(f"no verb is called {argv[0]!r}; {nearest(argv[0], [*VERBS])}verbs: {', '.join(VERBS)}")
    said, help_text = StringIO(), StringIO()
    try:
        # tyro sees no terminal and writes without colours, which print_note would spell out.
        with redirect_stderr(said), redirect_stdout(help_text), RULES:
            return _parse(argv)
    except SystemExit as ended:
        refused = _refusal(ended)
        if refused is not None:
            raise refused.with_traceback(None) from None
        # Help has colours, unless it shows defaults that were read from a file.
        foreign = any(word.startswith(("--resume", "--config", "--init")) for word in argv)
        if not ended.code and not foreign and sys.stdout.isatty():
            with RULES:
                return _parse(argv)
        output.print_plain(help_text.getvalue(), end="")
        output.print_note(said.getvalue(), end="")
        raise


def _refusal(error: BaseException | None) -> KeysiftError | None:
    """tyro draws a box around any ValueError and exits; what it caught is still in the chain."""
    while error is not None and not isinstance(error, KeysiftError):
        error = error.__context__
    return error


def _parse(argv: list[str]) -> Any:
    verbs = {verb: import_module(f"keysift.cli.{_MODULES.get(verb, verb)}") for verb in VERBS}
    # The summary in --help is the first line of each verb's docstring: no second list to keep.
    union: Any = Union[  # noqa: UP007
        tuple(
            Annotated[module.Args, tyro.conf.subcommand(verb, description=_about(verb, module, argv[:1] == [verb]))]
            for verb, module in verbs.items()
        )
    ]
    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    own = getattr(verbs.get(argv[0]) if argv else None, "defaults", None)
    if own is None:
        return tyro.cli(union, prog="keysift", description=_ABOUT, args=argv, config=flags)
    # Flags of these verbs change what a file or an old run says, so they start from it.
    module, rest = verbs[argv[0]], argv[1:]
    about = _about(argv[0], module, True)
    return tyro.cli(
        module.Args, prog=f"keysift {argv[0]}", description=about, args=rest, default=own(rest), config=flags
    )


def _about(verb: str, module: ModuleType, asked: bool) -> str:
    """The help of a verb that was asked for, or its entry in the list of all, which says --threads once at its top."""
    text = module.__doc__ or ""
    return f"{text}\n\n{_THREADS}" if asked and verb in COMPUTING else text


def choose_threads(argv: list[str]) -> tuple[list[str], Choice | None]:
    """Settles the threads of a verb that computes, before torch is imported; the arguments without --threads."""
    argv, asked = _without_threads(argv)
    verb = argv[0] if argv else ""
    if verb not in COMPUTING:
        if asked is not None:
            raise ConfigError(f"--threads is for verbs that compute ({', '.join(COMPUTING)}), not for {verb or 'none'}")
        return argv, None
    choice = choose(asked, examine(_BUSY))
    if "torch" in sys.modules:  # called from Python: the process is not ours to change, unless asked
        if asked is not None:
            sys.modules["torch"].set_num_threads(asked)
        return argv, choice
    if verb != "sweep" or asked is not None:
        settle(choice)
    return argv, choice


def _without_threads(argv: list[str]) -> tuple[list[str], int | None]:
    left, asked, words = [], None, iter(argv)
    for word in words:
        if word != "--threads" and not word.startswith("--threads="):
            left.append(word)
            continue
        number = next(words, "") if word == "--threads" else word.removeprefix("--threads=")
        if not number.isdecimal():
            raise ConfigError(f"--threads takes a number, got {number!r}; write --threads 2")
        asked = int(number)
    return left, asked


def _speaks() -> bool:
    """Of the processes torchrun started, one."""
    return os.environ.get("RANK", "0") == "0"


def _without_plugins(argv: list[str]) -> tuple[list[str], list[str]]:
    """The arguments without --plugin, before or after the verb, and the modules named, here or by a parent process."""
    named = [name for name in os.environ.get(PLUGINS, "").split(",") if name]
    words, rest = iter(argv), []
    for word in words:
        if word != "--plugin" and not word.startswith("--plugin="):
            rest.append(word)
            continue
        name = next(words, "") if word == "--plugin" else word.removeprefix("--plugin=")
        if not name or name.startswith("-"):
            raise ConfigError("--plugin needs the name of a module that registers mechanisms, e.g. --plugin mymodule")
        named.append(name)
    return rest, list(dict.fromkeys(named))


def _load_plugins(named: list[str]) -> None:
    """Processes started from here load the same."""
    if named:
        from keysift.mechanisms.lookup import load_module

        os.environ[PLUGINS] = ",".join(named)
        for name in named:
            load_module(name)


def _make_streams_safe() -> None:
    """A letter the terminal has not is spelled out, and what was closed (>&-) takes text and drops it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _abandon(stream: TextIO) -> None:
    """Python would flush it once more when it ends, and complain."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _main(argv: list[str]) -> int:
    _make_streams_safe()
    try:
        argv, plugins = _without_plugins(argv)
        argv, choice = choose_threads(argv)
        _load_plugins(plugins)
        args = parse(argv)
        warning = choice.warning() if choice is not None and _speaks() else None
        if warning is not None and argv[0] != "doctor":
            output.print_note(f"keysift: {warning}")
        found: int | None = sys.modules[type(args).__module__].run(args)
        sys.stdout.flush()
    except KeysiftError as error:
        if _speaks():
            output.print_note(f"keysift: {shown(error)}")
        return 2
    except BrokenPipeError:
        _abandon(sys.stdout)
        return 128 + signal.SIGPIPE  # `keysift ... | head`: the reader has enough
    except OSError as error:  # a full disk, a folder that may not be written, a name too long
        output.print_note(f"keysift: {shown(error)}")
        _abandon(sys.stdout)
        return 2
    except KeyboardInterrupt:
        return 130
    return found or 0


if __name__ == "__main__":
    main()

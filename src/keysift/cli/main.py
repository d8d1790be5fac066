"""The command line: `keysift VERB ...`.

A verb is a module with `Args` (its flags and their help) and `run(args)`. A KeysiftError is printed as one line on
stderr with exit code 2, without a traceback.
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

from keysift.cli.flags.constructors import RULES
from keysift.cli.terminal import output
from keysift.core.errors import ConfigError, KeysiftError, UnknownNameError
from keysift.core.registry import nearest
from keysift.core.terminal import escape_line
from keysift.core.threads import BusyCores, Choice, apply, choose, examine

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


_MODULES = {"import": "import_model"}  # "import" is a reserved word and cannot name a module

# Verbs that compute. A sweep leaves it to its runs, which share the cores; doctor reports what the others would use.
COMPUTING = ("check", "train", "generate", "demo", "bench", "sweep", "eval", "report", "inspect", "compare", "doctor")
_BUSY = BusyCores()
PLUGINS = "KEYSIFT_PLUGINS"
_THREADS = "--threads N uses N threads; the default is the number of free cores."
_ABOUT = (
    "Attention that can say no. --plugin MODULE, anywhere, imports a module with mechanisms of your own. "
    f"Verbs that compute: {_THREADS}"
)


def main(argv: list[str] | None = None) -> None:
    sys.exit(_main(sys.argv[1:] if argv is None else argv))


def parse(argv: list[str]) -> Any:
    """The parsed arguments of a verb. A value that a config rejects raises its KeysiftError."""
    if argv and argv[0] not in VERBS and not argv[0].startswith("-"):
        raise UnknownNameError(f"there is no verb {argv[0]!r}; {nearest(argv[0], [*VERBS])}verbs: {', '.join(VERBS)}")
    error_text, help_text = StringIO(), StringIO()
    try:
        # Redirected, tyro writes no colour codes, which print_note would escape.
        with redirect_stderr(error_text), redirect_stdout(help_text), RULES:
            return _parse(argv)
    except SystemExit as exit_:
        config_error = _config_error(exit_)
        if config_error is not None:
            raise config_error.with_traceback(None) from None
        # Help is coloured, unless it shows defaults that were read from a file.
        from_file = any(word.startswith(("--resume", "--config", "--init")) for word in argv)
        if not exit_.code and not from_file and sys.stdout.isatty():
            with RULES:
                return _parse(argv)
        output.print_plain(help_text.getvalue(), end="")
        output.print_note(error_text.getvalue(), end="")
        raise


def _config_error(error: BaseException | None) -> KeysiftError | None:
    """The KeysiftError behind an exit of tyro, which formats any ValueError itself and exits."""
    while error is not None and not isinstance(error, KeysiftError):
        error = error.__context__
    return error


def _parse(argv: list[str]) -> Any:
    verbs = {verb: import_module(f"keysift.cli.verbs.{_MODULES.get(verb, verb)}") for verb in VERBS}
    # The summary in --help is the docstring of each verb.
    union: Any = Union[  # noqa: UP007
        tuple(
            Annotated[
                module.Args, tyro.conf.subcommand(verb, description=_description(verb, module, argv[:1] == [verb]))
            ]
            for verb, module in verbs.items()
        )
    ]
    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    defaults = getattr(verbs.get(argv[0]) if argv else None, "defaults", None)
    if defaults is None:
        return tyro.cli(union, prog="keysift", description=_ABOUT, args=argv, config=flags)
    # The defaults of these verbs come from a file or an existing run, which flags then change.
    module, rest = verbs[argv[0]], argv[1:]
    about = _description(argv[0], module, True)
    return tyro.cli(
        module.Args, prog=f"keysift {argv[0]}", description=about, args=rest, default=defaults(rest), config=flags
    )


def _description(verb: str, module: ModuleType, own_help: bool) -> str:
    """Description of a verb: in its own help with a line about --threads, which the list of verbs has at the top."""
    text = module.__doc__ or ""
    return f"{text}\n\n{_THREADS}" if own_help and verb in COMPUTING else text


def choose_threads(argv: list[str]) -> tuple[list[str], Choice | None]:
    """Set the number of threads before torch is imported. Returns the arguments without --threads, and the choice."""
    argv, requested = _without_threads(argv)
    verb = argv[0] if argv else ""
    if verb not in COMPUTING:
        if requested is not None:
            raise ConfigError(f"--threads applies to {', '.join(COMPUTING)}, not to {verb or 'the list of verbs'}")
        return argv, None
    choice = choose(requested, examine(_BUSY))
    if "torch" in sys.modules:  # called from Python: change the process only on request
        if requested is not None:
            sys.modules["torch"].set_num_threads(requested)
        return argv, choice
    if verb != "sweep" or requested is not None:
        apply(choice)
    return argv, choice


def _without_threads(argv: list[str]) -> tuple[list[str], int | None]:
    rest, requested, words = [], None, iter(argv)
    for word in words:
        if word != "--threads" and not word.startswith("--threads="):
            rest.append(word)
            continue
        number = next(words, "") if word == "--threads" else word.removeprefix("--threads=")
        if not number.isdecimal():
            raise ConfigError(f"--threads takes a number, got {number!r}; write --threads 2")
        requested = int(number)
    return rest, requested


def _prints() -> bool:
    """Whether this process prints messages: only rank 0 of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _without_plugins(argv: list[str]) -> tuple[list[str], list[str]]:
    """The arguments without --plugin, and the plugins named here or by a parent process."""
    plugins = [name for name in os.environ.get(PLUGINS, "").split(",") if name]
    words, rest = iter(argv), []
    for word in words:
        if word != "--plugin" and not word.startswith("--plugin="):
            rest.append(word)
            continue
        name = next(words, "") if word == "--plugin" else word.removeprefix("--plugin=")
        if not name or name.startswith("-"):
            raise ConfigError("--plugin needs the name of a module that registers mechanisms, e.g. --plugin mymodule")
        plugins.append(name)
    return rest, list(dict.fromkeys(plugins))


def _load_plugins(plugins: list[str]) -> None:
    """Import the plugins, and pass them on to child processes."""
    if plugins:
        from keysift.mechanisms.lookup import load_module

        os.environ[PLUGINS] = ",".join(plugins)
        for name in plugins:
            load_module(name)


def _make_streams_safe() -> None:
    """Escape characters that the terminal cannot encode, and discard output to closed streams (>&-)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _abandon(stream: TextIO) -> None:
    """Redirect a broken stream to devnull: Python flushes it again at exit and would report an error."""
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
        warning = choice.warning() if choice is not None and _prints() else None
        if warning is not None and argv[0] != "doctor":
            output.print_note(f"keysift: {warning}")
        code: int | None = sys.modules[type(args).__module__].run(args)
        sys.stdout.flush()
    except KeysiftError as error:
        if _prints():
            output.print_note(f"keysift: {escape_line(error)}")
        return 2
    except BrokenPipeError:
        _abandon(sys.stdout)
        return 128 + signal.SIGPIPE  # `keysift ... | head`: the reader closed the pipe
    except OSError as error:  # such as a full disk or a folder without write permission
        output.print_note(f"keysift: {escape_line(error)}")
        _abandon(sys.stdout)
        return 2
    except KeyboardInterrupt:
        return 130
    return code or 0


if __name__ == "__main__":
    main()

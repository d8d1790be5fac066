"""`keysift VERB ...`. A verb is a module with `Args` (its flags, with their help) and `run(args)`.

A KeysiftError becomes one line on stderr and exit code 2: a user's mistake is not a traceback.
"""

import os
import sys
from importlib import import_module
from typing import Annotated, Any, Union

import tyro
from rich.console import Console

from keysift.core.errors import KeysiftError

VERBS = ("mechanisms", "weights", "doctor", "demo", "presets", "generate", "data", "train", "runs", "sweep", "bench")


def main(argv: list[str] | None = None) -> None:
    sys.exit(_main(sys.argv[1:] if argv is None else argv))


def parse(argv: list[str]) -> Any:
    """The arguments of a verb, as its `run` takes them."""
    verbs = {verb: import_module(f"keysift.cli.{verb}") for verb in VERBS}
    # The summary in --help is the first line of each verb's docstring: no second list to keep.
    union: Any = Union[  # noqa: UP007
        tuple(
            Annotated[module.Args, tyro.conf.subcommand(verb, description=module.__doc__)]
            for verb, module in verbs.items()
        )
    ]
    shown = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    own = getattr(verbs.get(argv[0]) if argv else None, "defaults", None)
    if own is None:
        return tyro.cli(union, prog="keysift", description="Attention that can say no.", args=argv, config=shown)
    # Flags of these verbs change what a file or an old run says, so they start from it.
    module, rest = verbs[argv[0]], argv[1:]
    about = module.__doc__
    return tyro.cli(
        module.Args, prog=f"keysift {argv[0]}", description=about, args=rest, default=own(rest), config=shown
    )


def _main(argv: list[str]) -> int:
    try:
        args = parse(argv)
        sys.modules[type(args).__module__].run(args)
    except KeysiftError as error:
        if os.environ.get("RANK", "0") == "0":  # every process torchrun started refuses; one says so
            Console(stderr=True, highlight=False).print(f"keysift: {error}", markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    main()

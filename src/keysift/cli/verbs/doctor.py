"""Show versions, hardware and backends, with the reason for each backend that is not usable; check the installation."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from keysift.core import threads
from keysift.core.config import config, to_dict
from keysift.core.errors import UnsupportedError
from keysift.core.terminal import escape_line, styled

_PACKAGES = ("keysift", "torch", "numpy", "safetensors", "tyro", "rich")


@config
class Args:
    check: bool = False
    """Test the installation: kernels, 20 training steps, generation, a page, installed extras. Takes a minute."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> None:
    from keysift.cli.terminal import output

    report = examine()
    if args.check:
        report["checks"] = _check(show=not args.json)
    if args.json:
        output.print_json(report)
    elif not args.check:
        _print(report)
    failed = [check["name"] for check in report.get("checks", ()) if check["passed"] is False]
    if failed:
        raise UnsupportedError(
            f"{len(failed)} of {len(report['checks'])} checks failed: {', '.join(failed)}; "
            f"install keysift again; if that does not help, report it with the output of keysift doctor --check --json"
        )


def _check(*, show: bool) -> list[dict[str, Any]]:
    from keysift.cli.installation import Check, check_installation
    from keysift.cli.terminal import output

    def print_check(check: Check) -> None:
        state = {True: ("passed", "green"), False: ("failed", "red"), None: ("not run", "yellow")}[check.passed]
        line = styled(state, f"  {check.name} ({check.seconds:.1f} s)\n    {escape_line(check.detail)}")
        output.console().print(line, soft_wrap=True)

    return [to_dict(check) for check in check_installation(print_check if show else lambda check: None)]


def _print(report: dict[str, Any]) -> None:
    from keysift.cli.terminal import output

    console = output.console()
    for name, value in report["versions"].items():
        console.print(f"{name:<12} {value or 'not installed'}", soft_wrap=True)
    machine = report["machine"]
    console.print(f"\n{machine['system']}", soft_wrap=True)
    for line in _threads(report["threads"]):
        console.print(line, soft_wrap=True)
    console.print(f"vector instructions: {machine['cpu_capability']}", soft_wrap=True)
    console.print(f"accelerator: {machine['accelerator'] or 'none, using the CPU'}", soft_wrap=True)
    console.print(f"C++ compiler: {machine['compiler'] or 'none found'}\n", soft_wrap=True)
    decode = report["decode_step"]
    state = ("usable", "green") if decode["usable"] else ("not usable", "red")
    reason = "" if decode["usable"] else f": {decode['reason']}"
    about = "one call per generated token, for softmax and screening models on the CPU, up to 8 texts at a time"
    console.print(styled("compiled decode step: ", state, f"{reason}\n    {about}"), soft_wrap=True)
    for backend in report["backends"]:
        state = ("usable", "green") if backend["usable"] else ("not usable", "red")
        reason = "" if backend["usable"] else f": {backend['reason']}"
        text = styled(f"backend {backend['name']}: ", state, f"{reason}\n    {backend['about']}")
        console.print(text, soft_wrap=True)


def examine() -> dict[str, Any]:
    import torch

    from keysift.kernels.attend import BACKENDS
    from keysift.kernels.cpu import library

    machine = threads.examine()
    accelerator = torch.accelerator.current_accelerator()
    reasons = {b.name: None if (reason := b.unavailable()) is None else str(reason) for b in BACKENDS}
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "machine": {
            "system": platform.platform(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "accelerator": None if accelerator is None else str(accelerator),
            "compiler": shutil.which("c++"),
        },
        "threads": {
            "cores": os.cpu_count(),
            "usable": machine.cores,
            "quota": machine.quota,
            "busy": round(machine.busy, 2),
            "load": round(machine.load, 2),
            "torch_threads": torch.get_num_threads(),
            "waiting": os.environ.get("OMP_WAIT_POLICY", "not set, so threads spin"),
        },
        "decode_step": {
            "usable": library.unavailable() is None,
            "reason": None if (reason := library.unavailable()) is None else str(reason),
        },
        "backends": [
            {"name": b.name, "about": b.about, "usable": reasons[b.name] is None, "reason": reasons[b.name]}
            for b in BACKENDS
        ],
    }


def _threads(report: dict[str, Any]) -> list[str]:
    quota = "no quota" if report["quota"] is None else f"a quota of {report['quota']:g}"
    return [
        f"cores: {report['usable']} of {report['cores']} usable, {quota}; "
        f"{report['busy']:.1f} in use by other processes (load {report['load']:.1f})",
        f"threads: torch uses {report['torch_threads']} (--threads N changes it); "
        f"wait policy: {report['waiting'].lower()}",
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

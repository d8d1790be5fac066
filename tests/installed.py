"""Install a wheel in new environments outside the repository and check it: python -m tests.installed WHEEL

One environment has the required packages only, the other the extras [figures] and [hub]. Versions are those of
constraints.txt. Each runs `keysift doctor --check` in an empty folder. `make test-wheel` runs this.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXTRAS = {"": {"figures": None, "hub": None}, "[figures,hub]": {"figures": True, "hub": True}}


def check(wheel: Path, extras: str, folder: Path) -> dict[str, Any]:
    """The report of `keysift doctor --check` in a new environment that has the wheel and these extras."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    venv, work = folder / "venv", folder / "work"
    work.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    install = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, f"keysift{extras} @ {wheel.resolve().as_uri()}"], check=True, env=environment, cwd=work)
    where = [venv / "bin" / "python", "-c", "import keysift; print(keysift.__file__)"]
    file = subprocess.run(where, check=True, capture_output=True, text=True, env=environment, cwd=work).stdout.strip()
    assert Path(file).is_relative_to(venv), file
    doctor = [venv / "bin" / "keysift", "doctor", "--check", "--json"]
    process = subprocess.run(doctor, check=False, capture_output=True, text=True, env=environment, cwd=work)
    assert process.returncode == 0, process.stdout + process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


def main(wheel: Path) -> None:
    for extras, expected in EXTRAS.items():
        with tempfile.TemporaryDirectory(prefix="keysift wheel ") as folder:
            report = check(wheel, extras, Path(folder))
        unusable = [
            backend["name"] for backend in report["backends"] if "_cpu" in backend["name"] and backend["reason"]
        ]
        assert not unusable, f"compiled backends that are not usable: {unusable}"
        for line in report["checks"]:
            extra = next((name for name in expected if f"[{name}]" in line["name"]), None)
            wanted = expected[extra] if extra else True
            sys.stdout.write(f"{wheel.name}{extras}: {line['name']}: {line['passed']}, {line['detail']}\n")
            assert line["passed"] is wanted, line


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Modules that keysift must not load before it needs them."""

import subprocess
import sys

CODE = """
import sys
import keysift.cli.main, keysift.kernels.attend, keysift.models.text_model
heavy = {"torch._dynamo", "sympy", "transformers", "matplotlib", "datasets"} & set(sys.modules)
sys.exit(f"loaded: {heavy}" if heavy else 0)
"""


def test_opening_a_model_loads_nothing_slow() -> None:
    """torch._dynamo alone would double the start-up time of every command."""
    process = subprocess.run([sys.executable, "-c", CODE], check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr

"""A numpy.py or random.py in the working folder is never imported."""

import subprocess
import sys
from pathlib import Path

_BUILD = """
from keysift.data import workers
from keysift.data.tokenizers.bytes import Bytes
chunks = [["some text"], ["more"], ["and more"]]
assert [ids.tolist() for chunk in workers.encode_chunks(Bytes(), chunks, 2) for ids in chunk]
"""


def test_workers_import_nothing_from_the_working_folder(tmp_path: Path) -> None:
    for name in ("numpy", "random", "pickle", "signal", "keysift"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write({name!r})\n")
    process = subprocess.run(
        [sys.executable, "-P", "-c", _BUILD], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert process.returncode == 0, process.stderr


def test_python_m_keysift_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    for name in ("numpy", "random", "torch", "rich", "tyro", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write({name!r})\n")
    command = [sys.executable, "-m", "keysift", "data", "build", "abcdigits:documents=20", "--out", "c"]
    process = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert process.returncode == 0, process.stderr

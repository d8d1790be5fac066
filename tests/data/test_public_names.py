"""Public names of keysift.data, and imports without torch."""

import subprocess
import sys

import keysift
import keysift.data
from tests.refusals import refuses


def test_every_public_name_exists() -> None:
    for name in keysift.data.__all__:
        assert getattr(keysift.data, name) is not None
    with refuses("module 'keysift.data' has no attribute 'nothing'", AttributeError):
        _ = keysift.data.nothing


def test_tokenizing_does_not_import_torch() -> None:
    script = "import keysift.data.shards, keysift.data.tokenizers.bpe, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    script = "import keysift; keysift.data.abcdigits.texts()"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

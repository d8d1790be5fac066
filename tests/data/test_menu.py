import subprocess
import sys

import keysift
import keysift.data
from tests.refusals import refuses


def test_every_name_on_the_menu_is_there() -> None:
    for name in keysift.data.__all__:
        assert getattr(keysift.data, name) is not None
    with refuses("module 'keysift.data' has no attribute 'nothing'", AttributeError):
        _ = keysift.data.nothing


def test_tokenising_does_not_wait_for_torch() -> None:
    script = "import keysift.data.shards, keysift.data.bpe, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    script = "import keysift; keysift.data.abcdigits.texts()"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

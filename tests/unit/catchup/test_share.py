"""Workers of one node that share an allowance."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from stretto.catchup.share import NodeShare

HOLD = """
import sys
from pathlib import Path
from stretto.catchup.share import NodeShare
share = NodeShare(Path(sys.argv[1]), "another")
print(share.look(sending=True), flush=True)
sys.stdin.read()
"""


def test_those_that_send_count_each_other(tmp_path: Path) -> None:
    one, two, three = (NodeShare(tmp_path / "catchup", name) for name in ("one", "two", "three"))
    assert one.look(sending=True) == 1
    assert two.look(sending=True) == 2
    assert three.look(sending=False) == 1
    assert one.look(sending=True) == 2
    two.look(sending=False)
    assert one.look(sending=True) == 1
    one.close()


def test_who_dies_sends_no_longer(tmp_path: Path) -> None:
    share = NodeShare(tmp_path, "mine")
    assert share.look(sending=True) == 1
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"2\n"
        assert share.look(sending=True) == 2
        other.send_signal(signal.SIGKILL)
    assert share.look(sending=True) == 1
    share.close()

"""The mark of a process that counts usage, and what a gateway that was killed leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gateway.usage.files import PART
from gateway.usage.running import Running

GONE = "gateway-0123456789ab"
HERE = "gateway-ba9876543210"
LASTING = "4d1b8c4e-0000-4000-8000-000000000001"
MARKS = """
import sys
from pathlib import Path
from gateway.usage.running import Running
marks = [Running(Path(sys.argv[1]), node) for node in sys.argv[2:]]
print([mark.begin() for mark in marks], flush=True)
sys.stdin.read()
"""


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("running-*"))


def test_the_next_process_of_a_node_learns_that_the_last_one_had_not_ended(tmp_path: Path) -> None:
    first = Running(tmp_path, LASTING)
    assert not first.begin()
    second = Running(tmp_path, LASTING)
    assert second.begin()
    second.end()
    assert marks(tmp_path) == []
    assert not first.begin()
    first.end()


def test_what_a_killed_gateway_left_goes_and_what_is_of_others_stays(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MARKS, str(tmp_path), GONE, LASTING],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as killed:  # fmt: skip
        assert killed.stdout is not None and killed.stdout.readline() == "[False, False]\n"
        left = tmp_path / f"minutes-{GONE}-20231114T221400123Z-00000001.ndjson.gz{PART}"
        left.write_bytes(b"half")
        beside = Running(tmp_path, HERE)
        assert not beside.begin() and marks(tmp_path) == sorted(f"running-{one}" for one in (GONE, HERE, LASTING))
        killed.kill()
    next_ = Running(tmp_path, "gateway-000000000000")
    assert next_.begin(), "minutes of it may be lost"
    assert f"running-{GONE}" not in marks(tmp_path) and not left.exists()
    assert {f"running-{HERE}", f"running-{LASTING}"} <= {*marks(tmp_path)}, "one works, one comes back"
    beside.end()
    next_.end()
    assert marks(tmp_path) == [f"running-{LASTING}"]

"""Usage files of a cluster whose leader is killed, to be kept: `python -m tests.cluster.usage_data DIR`."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.cluster.test_usage import LEFT, SHARDS, counts_of_a_killed_leader


def main(folder: Path) -> None:
    """Writes the ledgers of all backends, and `expected.json`: what was published, settled and left of each queue."""
    with tempfile.TemporaryDirectory() as aside:
        counted = counts_of_a_killed_leader(Path(aside), SHARDS, {})
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((Path(aside) / "all").glob("ledger-*.gz")):
            shutil.copy(path, folder)
    expected = {queue: [came, went, LEFT] for queue, (came, went) in counted.items()}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

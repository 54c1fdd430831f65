"""One process or several, in turns: `python -m tests.bench.processes`. Several producers, so that every gateway is
used.

Load and server share the machine, as they do for anyone who tries `--gateways` on one: a small machine shows the cost
of the hop to the storage process, a large one the gain from more cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.support.several import SeveralServer


def measured(server: SeveralServer, clients: int, messages: int) -> dict[str, float]:
    """Messages per second over all clients, by measurement."""
    command = [sys.executable, "-m", "gateway", "bench", "--json", "--url", server.url]
    command += ["--key-file", str(server.data / "admin.key"), "--messages", str(messages), "--seconds", "1"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(clients)]
    found: dict[str, float] = defaultdict(float)
    for one in running:
        out, _ = one.communicate(timeout=300)
        for result in json.loads(out)["results"]:
            if result["name"] != "latency":
                found[result["name"]] += result["per_s"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--gateways", type=int, nargs="*", default=[1, 2])
    given = parser.parse_args()
    rates: dict[tuple[int, str], list[float]] = defaultdict(list)
    for _ in range(given.rounds):
        for gateways in given.gateways:
            with (
                tempfile.TemporaryDirectory() as folder,
                SeveralServer(Path(folder) / "data", gateways=gateways) as server,
            ):
                for name, rate in measured(server, given.clients, given.messages).items():
                    rates[gateways, name].append(rate)
    for (gateways, name), found in sorted(rates.items(), key=lambda one: (one[0][1], one[0][0])):
        shown = f"{min(found):,.0f} to {max(found):,.0f}"
        print(f"{name:12} {gateways} gateways  {statistics.median(found):10,.0f} messages/s  ({shown})")


if __name__ == "__main__":
    main()

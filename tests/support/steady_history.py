"""What a steady client saw, and the rules it must satisfy."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from typing import Any, NamedTuple

from tests.support.hosts import Host
from tests.support.patience import PATIENCE_S, until

END_S_MAX = PATIENCE_S


class Steady:
    """A steady client on a host, in Python or Node."""

    def __init__(self, host: Host, name: str, command: list[str], env: dict[str, str]) -> None:
        self.name = name
        self._said = host.stdout_of(name)
        self._host = host
        self._read_bytes = 0
        self._events: list[dict[str, Any]] = []
        self._counts: Counter[str] = Counter()
        self._process = host.start_talking(name, *command, env=env)

    def events(self) -> list[dict[str, Any]]:
        """All events so far, without an incomplete last line."""
        with self._said.open("rb") as said:
            said.seek(self._read_bytes)
            whole = said.read().rpartition(b"\n")[0]
        if whole:
            self._read_bytes += len(whole) + 1
            new = [json.loads(line) for line in whole.split(b"\n")]
            self._events += new
            self._counts.update(each["event"] for each in new)
        return self._events

    def count(self, event: str) -> int:
        self.events()
        return self._counts[event]

    def wait_for(self, event: str, count: int, seconds_max: float) -> float:
        """Waits until it has reported `event` that often; returns the seconds that took."""
        return until(lambda: self.count(event) >= count, self.tail, within_s=seconds_max)

    def tail(self) -> str:
        return f"{self.name}: {self.events()[-10:]}\n{self._host.log(self.name)[-2000:]}"

    def finish(self) -> History:
        """Makes it stop publishing, wait for what is in flight, and leave."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.tail()) from None
        assert code == 0, self.tail()
        return history(self.events())


class History(NamedTuple):
    """`lost`: confirmed but never delivered. `again`: delivered after its ack was confirmed."""

    published: int
    lost: list[int]
    again: list[int]


def history(events: list[dict[str, Any]]) -> History:
    published: set[int] = set()
    delivered: set[int] = set()
    acked: set[int] = set()
    again: list[int] = []
    for each in events:
        match each["event"]:
            case "published":
                published.add(each["n"])
            case "delivered":
                delivered.add(each["n"])
                if each["n"] in acked:
                    again.append(each["n"])
            case "acked":
                acked.add(each["n"])
    return History(len(published), sorted(published - delivered), again)

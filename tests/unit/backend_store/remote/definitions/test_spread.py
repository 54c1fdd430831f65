"""How many queues lie in each cluster, and how many came since a manager's last report."""

from __future__ import annotations

from backend_store.core.outer.limits import REPORT_MS_MAX
from backend_store.model import QueueConfig, QueueDefinition
from backend_store.remote.definitions.spread import Spread

NOW_MS = 10 * REPORT_MS_MAX


def queue(uid: int, cluster: str, made_ms: int = NOW_MS) -> QueueDefinition:
    return QueueDefinition(uid, "t", f"q{uid}", QueueConfig(), made_ms, 1, cluster=cluster)


def test_queues_are_counted_as_they_come_change_and_go() -> None:
    spread = Spread(lambda: NOW_MS)
    one, two = queue(1, ""), queue(2, "eu")
    spread.put(None, one)
    spread.put(None, two)
    spread.put(two, two)
    assert spread.queues == {"": 1, "eu": 1}
    assert (spread.since("", 0), spread.since("eu", 0)) == (1, 1), "one that changed is not new"
    spread.put(one, queue(3, "eu"))
    assert spread.queues["eu"] == 2 and not spread.queues[""], "made anew under its name, elsewhere"
    spread.remove(two)
    assert spread.queues["eu"] == 1


def test_what_a_report_may_know_is_not_counted_again() -> None:
    spread = Spread(lambda: NOW_MS)
    spread.put(None, queue(1, "eu", NOW_MS - REPORT_MS_MAX - 1))
    spread.put(None, queue(2, "eu", NOW_MS - 10))
    spread.put(None, queue(3, "eu", NOW_MS))
    assert spread.queues["eu"] == 3
    assert [spread.since("eu", NOW_MS + after) for after in (-11, -10, 0)] == [2, 1, 0]

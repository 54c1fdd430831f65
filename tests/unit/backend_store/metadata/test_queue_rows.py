"""What is found of queue definitions at the cost of what is found."""

from __future__ import annotations

import random

import pytest

from backend_store.metadata.queue_rows import NamesByTenant, QueueRows
from backend_store.model import QueueConfig, QueueDefinition

CONFIG = QueueConfig()


def queue(uid: int, name: str, tenant: str = "t", version: int = 1) -> QueueDefinition:
    return QueueDefinition(uid, tenant, name, CONFIG, 0, version)


def test_queues_are_found_by_their_number() -> None:
    rows = QueueRows([queue(5, "e"), queue(2, "b")])
    rows["t", "c"] = three = queue(3, "c")
    assert rows.of(3) is three and rows.of(4) is None and rows.of(9) is None
    rows["t", "c"] = changed = queue(3, "c", version=2)
    assert rows.of(3) is changed
    rows["t", "c"] = anew = queue(7, "c")
    assert rows.of(3) is None and rows.of(7) is anew
    del rows["t", "e"]
    assert rows.of(5) is None and [one.uid for one in rows.after(0, 10)] == [2, 7]


def test_a_page_of_queues_is_those_behind_a_number() -> None:
    rows = QueueRows([queue(uid, f"q{uid}") for uid in (9, 4, 1, 6)])
    assert [one.uid for one in rows.after(1, 2)] == [4, 6]
    assert [one.uid for one in rows.after(5, 9)] == [6, 9]
    assert rows.after(9, 9) == []


def test_a_tenants_queues_are_found_without_a_look_at_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = QueueRows([queue(uid, f"q{uid}", tenant="many") for uid in range(1, 50)])
    rows["few", "a"], rows["few", "b"] = queue(100, "a", "few"), queue(101, "b", "few")
    del rows["few", "a"]
    looks: list[tuple[str, str]] = []
    found = QueueRows.__getitem__

    def look(rows: QueueRows, name: tuple[str, str]) -> QueueDefinition:
        looks.append(name)
        return found(rows, name)

    monkeypatch.setattr(QueueRows, "__getitem__", look)
    assert [one.name for one in rows.of_tenant("few")] == ["b"] and rows.of_tenant("nobody") == []
    assert looks == [("few", "b")]


def test_names_of_a_tenant_without_queues_take_no_place() -> None:
    names = NamesByTenant()
    names.put("t", "a")
    names.remove("t", "a")
    assert names._of == {}


def test_whatever_comes_and_goes_what_is_found_is_what_there_is() -> None:
    rng, rows, uid = random.Random(7), QueueRows([]), 0
    for _ in range(500):
        name = rng.choice("ab"), f"q{rng.randrange(8)}"
        if name in rows and rng.random() < 0.4:
            del rows[name]
        else:
            uid += 1
            rows.put({name: queue(uid if rng.random() < 0.5 or name not in rows else rows[name].uid, name[1], name[0])})
        assert [one.uid for one in rows.after(0, 100)] == sorted(one.uid for one in rows.values())
        assert all(rows.of(one.uid) is one for one in rows.values())
        for tenant in "ab":
            assert {one.name for one in rows.of_tenant(tenant)} == {name for of, name in rows if of == tenant}

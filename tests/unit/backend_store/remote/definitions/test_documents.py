"""Rows beside the metadata, shared by gateways over their backend; a real node keeps them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend_store.metadata.documents import Document, Documents
from backend_store.remote.definitions.documents import RemoteDocuments
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine

pytestmark = pytest.mark.anyio


class Kept:
    """What a backend has, and the gateways that it tells."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.documents = Documents(self.engine, self._write)
        self.gateways: list[RemoteDocuments] = []

    async def _write(self, batch: Batch) -> None:
        self.engine.commit(batch, lambda: None)

    async def ask(self, operation: Any) -> msgspec.Raw:
        before = dict(self.documents.rows())
        await self.documents.write(operation.documents)
        rows = self.documents.rows()
        changed = [row for place, row in rows.items() if before.get(place) is not row]
        for gateway in self.gateways:
            gateway.take(changed, [place for place in before if place not in rows], is_first=False)
        return msgspec.Raw(b"\xc0")

    def gateway(self) -> RemoteDocuments:
        made = RemoteDocuments(self.ask, holder=f"g{len(self.gateways)}", are_shared=True)
        made.take(list(self.documents.rows().values()), [], is_first=True)
        self.gateways.append(made)
        return made


async def test_what_one_gateway_writes_the_others_have() -> None:
    kept = Kept()
    one, two = kept.gateway(), kept.gateway()
    await one.write([Document("rule", "b", b"2"), Document("rule", "a", b"1"), Document("other", "a", b"3")])
    assert two.all("rule") == one.all("rule") == kept.documents.all("rule") == [("a", b"1"), ("b", b"2")]
    await two.write([Document("rule", "a", None)])
    assert one.all("rule") == [("b", b"2")]
    assert one.changes_elsewhere("rule") == two.changes_elsewhere("rule") == 2
    assert kept.gateway().all("rule") == [("b", b"2")]


async def test_a_gateway_hears_which_kinds_of_rows_have_changed() -> None:
    kept = Kept()
    one, two = kept.gateway(), kept.gateway()
    await one.write([Document("rule", "a", b"1"), Document("alert", "b", b"2")])
    await one.write([Document("alert", "b", None)])
    assert (two.changes_elsewhere("rule"), two.changes_elsewhere("alert"), two.changes_elsewhere("other")) == (1, 2, 0)
    assert two.changes_elsewhere("rule", "alert") == 3


async def test_rows_that_went_while_the_backend_was_away_are_gone() -> None:
    kept = Kept()
    one = kept.gateway()
    await one.write([Document("rule", "a", b"1"), Document("rule", "b", b"2")])
    changes = one.changes_elsewhere("rule")
    one.take(list(kept.documents.rows().values()), [], is_first=True)
    assert one.changes_elsewhere("rule") == changes, "nothing is different"
    await kept.documents.write([Document("rule", "a", None)])
    one.take(list(kept.documents.rows().values()), [], is_first=True)
    assert one.all("rule") == [("b", b"2")]
    assert one.changes_elsewhere("rule") == changes + 1


async def test_rows_of_one_kind_are_found_without_a_look_at_the_others() -> None:
    """The alerts' history has thousands of rows, and reports of gateways are looked for with each look."""
    kept = Kept()
    await kept.documents.write([Document("report", "g0", b"1"), *(Document("line", f"{n}", b"") for n in range(100))])
    one = kept.gateway()

    class Untouched(dict[Any, Any]):
        def values(self) -> Any:
            raise AssertionError("all rows were looked at")

    one._rows = Untouched(one._rows)
    assert one.all("report") == [("g0", b"1")] and one.all("none") == []
    await one.write([Document("report", "g0", None)])
    assert one.all("report") == [] and len(one.all("line")) == 100


async def test_rows_in_memory_are_those_of_the_disk() -> None:
    kept = Kept()
    await kept.documents.write([Document("rule", "a/b", b"1")])
    assert kept.documents.rows() == {("rule", "a/b"): Document("rule", "a/b", b"1")}
    await kept.documents.write([Document("rule", "a/b", b"2"), Document("rule", "c", b"3")])
    fresh = Documents(kept.engine, kept._write)
    assert fresh.rows() == kept.documents.rows()
    assert fresh.all("rule") == [("a/b", b"2"), ("c", b"3")]

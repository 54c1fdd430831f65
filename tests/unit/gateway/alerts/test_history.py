"""The history of alerts: what makes room, what is told newest first, and the number that makes an alert's id."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.metadata.documents import Documents
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from gateway.alerts import history as history_
from gateway.alerts.history import History
from gateway.alerts.stored import HISTORY, Transition
from tests.unit.gateway.alerts.test_alerts import RULE

pytestmark = pytest.mark.anyio

LINES_MAX = 3
DAY_MS = 86_400_000
LINE = Transition(
    1, 0, "shop", "rule_1.q.0", "rule_1", "deep", "depth", "warning", "q", "firing", 1.0, 0.0, None, 0
)  # fmt: skip


@pytest.fixture
def documents() -> Documents:
    engine = MemoryEngine()

    async def write(batch: Batch) -> None:
        engine.commit(batch, lambda: None)

    return Documents(engine, write)


@pytest.fixture
def history(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setattr(history_, "HISTORY_PER_TENANT_MAX", LINES_MAX)
    return History(documents)


def line(seq: int, subject: str = "q", *, at_ms: int | None = None) -> Transition:
    return msgspec.structs.replace(LINE, seq=seq, at_ms=seq if at_ms is None else at_ms, subject=subject)


async def test_the_oldest_lines_make_room_and_the_next_process_has_the_others(
    history: History, documents: Documents
) -> None:
    for seq in range(1, LINES_MAX + 3):
        await documents.write(history.note(line(seq), now_ms=seq))
    await documents.write(history.note(line(9, at_ms=31 * DAY_MS), now_ms=31 * DAY_MS))
    assert [one.seq for one in history.all()] == [9], "those of before a month go, too"
    again = History(documents)
    assert again.of_tenant == history.of_tenant and again.seq == 9 and len(documents.all(HISTORY)) == 1


async def test_the_newest_are_told_first_up_to_a_time(history: History) -> None:
    for seq in (1, 2, 3):
        history.note(line(seq), now_ms=seq)
    assert [one.seq for one in history.newest_first("shop", since_ms=2)] == [3, 2]
    assert not list(history.newest_first("other", since_ms=0))


async def test_a_line_of_a_gateway_whose_clock_is_behind_hides_none_of_before(history: History) -> None:
    history.note(line(1, at_ms=1_000), now_ms=1_000)
    history.note(line(2, at_ms=900), now_ms=900)
    assert [one.seq for one in history.newest_first("shop", since_ms=950)] == [1]


async def test_the_number_for_an_id_grows_though_the_lines_about_a_subject_make_room(history: History) -> None:
    assert history.last_about(RULE, "q") == 0
    history.note(line(1), now_ms=1)
    numbers = [history.last_about(RULE, "q")]
    for seq in range(2, 2 + LINES_MAX):
        history.note(line(seq, "busy"), now_ms=seq)
        numbers.append(history.last_about(RULE, "q"))
    assert numbers == [1, 1, 1, 2], "then that of the oldest line there is"
    history.note(line(7), now_ms=7)
    assert history.last_about(RULE, "q") == 7


async def test_of_a_tenant_that_is_removed_nothing_is_left(history: History) -> None:
    history.note(line(1), now_ms=1)
    assert history.forget_tenant("shop") == [f"{1:016x}"] and not history.all() and not history.of_tenant
    assert history.forget_tenant("shop") == [] and history.last_about(RULE, "q") == 0

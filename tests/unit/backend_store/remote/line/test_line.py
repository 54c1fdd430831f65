"""A gateway's line to a backend, without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import msgspec
import pytest

from backend_store.client.since import ASKED, Asked, unbounded_task, waited_until
from backend_store.model import (
    ClusterAway,
    NotDurable,
    OutcomeUnknown,
    Overloaded,
    PushqError,
    StorageFull,
    Unavailable,
)
from backend_store.remote.limits import LINE_PING_SECONDS, LINE_SILENCE_SECONDS_MAX
from backend_store.remote.line import line as lines
from backend_store.remote.line.line import Call, Line
from backend_store.service.defining import GoneQueues
from backend_store.service.operations import Purge
from backend_store.shard.limits import SESSION_SECONDS_DEFAULT
from backend_store.tracing import carried
from backend_store.wire.store_frames import (
    NOT_LEADER,
    Answered,
    Asks,
    Place,
    Publish,
    Publishes,
    Results,
    Settle,
    Settles,
    from_gateway,
    wrong,
)
from tests.support.gateways import Gateway
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio


def test_gateway_leaves_a_silent_backend_before_another_one_leads() -> None:
    """A stopped leader was replaced within six seconds, and its gateways waited ten for it to answer."""
    assert LINE_PING_SECONDS + LINE_SILENCE_SECONDS_MAX < SESSION_SECONDS_DEFAULT


class Nowhere:
    def address(self, shard: int) -> None:
        """Nobody is known."""

    def failed(self, shard: int, address: tuple[str, int], leader: str | None) -> None: ...


async def test_request_is_not_sent_by_a_line_that_was_lost_while_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lay in a queue that nobody reads, and its caller was told that the change may have been made."""
    monkeypatch.setattr(lines, "ASK_MS_MAX", 300)
    line = Line(0, Nowhere(), Gateway(), "gateway", None)
    asking = asyncio.ensure_future(line.ask({"what": "ever"}, may_repeat=False))
    for _ in range(10):
        await asyncio.sleep(0)
    line._opened()
    line._lose()
    with pytest.raises(Unavailable):
        await asking
    await line.close()


# ------------------------------------------------------------------------------------- publishes that are sent again

KNOWN_MS = 50


class Held:
    """A line whose clock stands, and whose frames lie where they would leave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: str = "") -> None:
        self.now_ms = 1_000
        self.line = Line(0, Nowhere(), Gateway(), "gateway", None, cluster=cluster)
        monkeypatch.setattr(self.line, "now_ms", lambda: self.now_ms)
        self.frames: list[bytes] = []
        monkeypatch.setattr(self.line, "_post", self.frames.append)
        self.answers: list[Any] = []

    async def publish(self, until_ms: int = 10_000, known_ms: int | None = KNOWN_MS, tenant: str = "t") -> None:
        frame = Publish(self.line.next_number(), 0, tenant, "q", 1, [], None)
        self.line.call(Call(frame, self.answers.append, until_ms, may_repeat=True, known_ms=known_ms))
        await self.turn()

    async def fail(self, until_ms: int = 10_000) -> None:
        """A publish of somebody who fails on what it is told."""

        def reply(_: Any) -> None:
            raise AssertionError("a fault of ours")

        frame = Publish(self.line.next_number(), 0, "t", "q", 1, [], None)
        self.line.call(Call(frame, reply, until_ms, may_repeat=False))
        await self.turn()

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def opened(self) -> None:
        self.line._opened()
        await self.turn()

    def lost(self) -> None:
        self.line._lose()

    def answered(self, error: PushqError) -> None:
        self.line._heard(Results([(1, None, wrong(error))], []))

    @property
    def budgets(self) -> list[int]:
        """The times that backends were given for other requests."""
        return [frame.budget_ms for frame in map(from_gateway, self.frames) if isinstance(frame, Asks)]

    @property
    def sent(self) -> list[int]:
        """The times that backends were given for the publishes that have left."""
        frames = [from_gateway(frame) for frame in self.frames]
        self.frames.clear()
        return [call.budget_ms for frame in frames if isinstance(frame, Publishes) for call in frame.calls]


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    monkeypatch.setattr(lines, "SWEEP_SECONDS", 0.001)
    held = Held(monkeypatch)
    yield held
    await held.line.close()


async def test_a_publish_is_sent_again_for_as_long_as_its_repeat_is_known(held: Held) -> None:
    await held.opened()
    await held.publish()
    assert held.sent == [9_000]
    held.lost()
    held.now_ms += KNOWN_MS - 20
    await held.opened()
    assert held.sent == [20], "a backend that comes to it later must not begin with it"
    held.answered(Overloaded("the request timed out; nothing was accepted"))
    assert [error.code for error in held.answers] == ["outcome-unknown"]


@pytest.mark.parametrize("error", [StorageFull, NotDurable, Unavailable])
async def test_a_repeat_that_is_not_begun_says_nothing_of_what_was_sent_first(
    held: Held, error: type[PushqError]
) -> None:
    await held.opened()
    await held.publish()
    held.lost()
    await held.opened()
    held.answered(error("nothing was accepted"))
    assert [error.code for error in held.answers] == ["outcome-unknown"]


async def test_a_publish_is_not_sent_again_when_its_repeat_would_be_a_second_message(held: Held) -> None:
    await held.opened()
    await held.publish()
    assert held.sent
    held.lost()
    held.now_ms += KNOWN_MS
    await held.opened()
    assert held.sent == [] and [error.code for error in held.answers] == ["outcome-unknown"]


async def test_what_was_sent_to_a_cluster_that_is_away_waits_and_what_was_not_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "AWAY_SECONDS", 0.05)
    further, home = Held(monkeypatch, "eu"), Held(monkeypatch)
    for held in (further, home):
        await held.opened()
        await held.publish()
        assert held.sent == [9_000]
        held.lost()
        await held.publish()
    assert not further.line.is_away and further.answers == [], "a leader is elected meanwhile"
    await eventually(lambda: further.line.is_away)
    await eventually(lambda: len(further.answers) == 1)
    await further.publish()
    assert [type(error) for error in further.answers] == [ClusterAway] * 2
    assert "of cluster 'eu'" in further.answers[0].detail and further.answers[0].retry_after_ms
    with pytest.raises(ClusterAway):
        await further.line.ask({"what": "ever"}, may_repeat=True)
    await home.publish()
    assert not home.line.is_away and home.answers == []
    await further.opened()
    assert further.sent == [KNOWN_MS], "the one that may have been stored, again"
    assert not further.line.is_away
    for held in (further, home):
        await held.line.close()


async def test_a_publish_that_no_backend_began_waits_as_long_as_its_caller(held: Held) -> None:
    await held.publish()
    held.now_ms += 10 * KNOWN_MS
    await held.opened()
    held.now_ms += 10 * KNOWN_MS
    assert held.sent == [9_000 - 10 * KNOWN_MS]
    held.answered(PushqError("another one leads", code=NOT_LEADER))
    held.lost()
    await held.opened()
    assert held.sent == [9_000 - 20 * KNOWN_MS] and held.answers == []


@pytest.mark.parametrize("is_sent", [False, True])
async def test_who_waited_in_vain_is_told_whether_his_message_may_be_stored(held: Held, is_sent: bool) -> None:
    if is_sent:
        await held.opened()
    await held.publish(known_ms=None)
    if is_sent:
        held.lost()
    held.now_ms = 10_000
    await eventually(lambda: bool(held.answers))
    assert [error.code for error in held.answers] == ["outcome-unknown" if is_sent else "unavailable"]


async def test_a_line_that_is_closed_says_what_may_be_stored(held: Held) -> None:
    await held.publish()
    await held.line.close()
    await held.opened()
    await held.publish()
    await held.line.close()
    assert [error.code for error in held.answers] == ["unavailable", "outcome-unknown"]


async def test_nothing_is_left_of_publishes_whose_time_was_over_while_nobody_led(held: Held) -> None:
    """Each left a number, for as long as a shard had no leader."""
    for _ in range(5):
        await held.publish(until_ms=held.now_ms)
    await eventually(lambda: len(held.answers) == 5)
    assert {error.code for error in held.answers} == {"unavailable"}
    assert held.line._unsent == []


# ---------------------------------------------------------------------------------------------- faults of listeners


async def test_who_fails_on_its_answer_stops_no_deadlines(held: Held) -> None:
    await held.fail(until_ms=held.now_ms)
    await held.publish(until_ms=held.now_ms)
    await eventually(lambda: len(held.answers) == 1)
    await held.publish(until_ms=held.now_ms)
    await eventually(lambda: len(held.answers) == 2)


async def test_who_fails_on_its_answer_keeps_nobody_else_from_it(held: Held) -> None:
    await held.opened()
    await held.fail()
    frame = Publish(held.line.next_number(), 0, "t", "q", 1, [], None)
    held.line.call(Call(frame, held.answers.append, 10_000, may_repeat=False))
    await held.turn()
    held.line._heard(Results([(1, None, wrong(Unavailable("later")))], []))
    await held.fail()
    held.lost()
    assert [error.code for error in held.answers] == ["outcome-unknown"]
    await held.fail()
    await held.publish()
    await held.line.close()
    assert [error.code for error in held.answers] == ["outcome-unknown", "unavailable"]


async def test_an_owner_that_fails_when_the_line_is_lost_keeps_nobody_from_an_answer(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise AssertionError("a fault of ours")

    await held.opened()
    frame = Publish(held.line.next_number(), 0, "t", "q", 1, [], None)
    held.line.call(Call(frame, held.answers.append, 10_000, may_repeat=False))
    await held.turn()
    monkeypatch.setattr(held.line._owner, "lost", lost)
    with pytest.raises(AssertionError, match="a fault of ours"):
        held.lost()
    assert [error.code for error in held.answers] == ["outcome-unknown"]


# ------------------------------------------------------------------------------------------------------- deadlines


async def test_a_request_waits_for_a_line_as_long_as_its_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    token = ASKED.set(Asked(0.0, asyncio.get_running_loop().time() + 0.01))
    with pytest.raises(Unavailable):
        await held.line.ask({"what": "ever"}, may_repeat=False)
    await held.opened()
    with pytest.raises(Unavailable, match="the request timed out before"):
        await held.line.ask({"what": "ever"}, may_repeat=False)
    assert held.budgets == [], "what nobody waits for is not begun"
    ASKED.reset(token)
    await held.line.close()


async def test_a_change_that_was_sent_and_is_not_answered_in_its_callers_time_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held(monkeypatch)
    await held.opened()
    for may_repeat, error in ((False, OutcomeUnknown), (True, Unavailable)):
        token = ASKED.set(Asked(0.0, asyncio.get_running_loop().time() + 0.3))
        with pytest.raises(error):
            await held.line.ask({"what": "ever"}, may_repeat=may_repeat)
        ASKED.reset(token)
    assert [0 < budget_ms <= 300 for budget_ms in held.budgets] == [True, True], "the backend is told how long"
    await held.line.close()


async def repeated(held: Held, *, within_s: float = 0.3) -> asyncio.Task[msgspec.Raw]:
    """A change that may be done twice, sent to a backend."""
    token = ASKED.set(Asked(0.0, asyncio.get_running_loop().time() + within_s))
    asking = asyncio.create_task(held.line.ask({"what": "ever"}, may_repeat=True, is_change=True))
    ASKED.reset(token)
    await eventually(lambda: len(held.line._asked) == 1)
    return asking


async def test_a_change_that_may_be_repeated_is_open_when_its_time_is_over(held: Held) -> None:
    """A redrive that had begun was told as one that had not."""
    await held.opened()
    unanswered = await repeated(held)
    with pytest.raises(OutcomeUnknown):
        await unanswered
    lost = await repeated(held)
    held.lost()
    with pytest.raises(OutcomeUnknown):
        await lost


@pytest.mark.parametrize(("was_lost", "expected"), [(True, OutcomeUnknown), (False, Overloaded)])
async def test_a_change_that_is_refused_when_it_is_repeated_is_open(
    held: Held, was_lost: bool, expected: type[PushqError]
) -> None:
    await held.opened()
    asking = await repeated(held, within_s=30)
    if was_lost:
        held.lost()
        await held.opened()
        await eventually(lambda: len(held.budgets) == 2)
    held.line._heard(Answered(max(held.line._asked), wrong=wrong(Overloaded("nothing was begun"))))
    with pytest.raises(expected):
        await asking


async def test_a_change_that_no_backend_took_is_not_begun(held: Held) -> None:
    await held.opened()
    asking = await repeated(held)
    held.line._heard(Answered(max(held.line._asked), wrong=wrong(PushqError("another one leads", code=NOT_LEADER))))
    held.line._open.clear()
    with pytest.raises(Unavailable):
        await asking


async def test_a_request_knows_that_a_backend_made_its_change(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    await held.opened()
    for may_repeat, is_change in ((True, False), (True, True), (False, False)):
        token = ASKED.set(asked := Asked(0.0))
        asking = asyncio.create_task(held.line.ask({"what": "ever"}, may_repeat=may_repeat, is_change=is_change))
        while not held.line._asked:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0)
        (waiting,) = held.line._asked.values()
        waiting.set_result(msgspec.Raw(b"done"))
        await asking
        assert asked.has_changed is (is_change or not may_repeat)
        ASKED.reset(token)
    await held.line.close()


async def test_work_that_requests_share_has_no_deadline_of_the_one_that_began_it() -> None:
    async def seen() -> float:
        return waited_until()

    token = ASKED.set(Asked(0.0, 1.0))
    assert (await unbounded_task(seen(), name="shared"), waited_until()) == (inf, 1.0)
    ASKED.reset(token)


async def test_a_frame_has_the_traces_of_its_own_calls(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had those of all frames before it, so a long queue of calls became frames that no backend takes."""
    monkeypatch.setattr(lines, "LINE_FRAME_BYTES_SOFT_MAX", 10)
    for number in range(1, 4):
        frame = Publish(held.line.next_number(), 0, "t", "q", 1, [], None)
        with carried(f"trace {number}"):
            held.line.call(Call(frame, held.answers.append, 10_000, may_repeat=True, size=11))
    settle = Settle(held.line.next_number(), Place("t", "q", 1), "ack", {})
    with carried("trace 4"):
        held.line.call(Call(settle, held.answers.append, 10_000, may_repeat=True))
    await held.opened()
    frames = [frame for frame in map(from_gateway, held.frames) if isinstance(frame, Publishes | Settles)]
    assert [frame.traces for frame in frames] == [{number: f"trace {number}"} for number in range(1, 5)]


# ---------------------------------------------------------------------------------------------------------- shares


OWN = "the gateway"


def asking(line: Line, operation: Any, whose: str | None = OWN) -> asyncio.Task[msgspec.Raw]:
    """A question of the gateway's own, or of a request on that account."""
    if whose is OWN:
        return asyncio.create_task(line.ask(operation, may_repeat=True))
    request = Asked(0.0)
    request.whose = whose
    token = ASKED.set(request)
    task = asyncio.create_task(line.ask(operation, may_repeat=True))
    ASKED.reset(token)
    return task


def purge(tenant: str) -> Purge:
    return Purge(Place(tenant, "q", 1), "p1")


async def test_slow_questions_of_one_tenant_keep_no_other_one_and_no_operator_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "LINE_ASKS_MAX", 8)
    monkeypatch.setattr(lines, "LINE_OWN_ASKS_MAX", 2)
    held = Held(monkeypatch)
    await held.opened()
    slow = [asking(held.line, purge("slow")) for _ in range(8)]
    await held.turn()
    refused = [task.exception() for task in slow if task.done()]
    assert len(refused) == 4, "alone it has half of the room"
    assert isinstance(refused[0], Overloaded) and refused[0].retry_after_ms == 500
    assert "4 requests of tenant 'slow' wait for the backend of shard 0" in refused[0].detail
    others = [asking(held.line, purge("quiet")), asking(held.line, GoneQueues([]))]
    others.append(asking(held.line, purge("slow"), None))
    await eventually(lambda: len(held.line._asked) == 7)
    assert not any(task.done() for task in others), "another tenant's, the gateway's own, an operator's"
    own = asking(held.line, GoneQueues([]))
    with pytest.raises(Overloaded, match="2 requests of operators and of this gateway itself wait for"):
        await own
    asks = [frame for frame in map(from_gateway, held.frames) if isinstance(frame, Asks)]
    assert [frame.whose for frame in asks] == ["slow"] * 4 + ["quiet", None, None], "the backend shares as well"
    for waiting in held.line._asked.values():
        waiting.set_result(msgspec.Raw(b"done"))
    await asyncio.gather(*others)
    again = asking(held.line, purge("slow"))
    await held.turn()
    assert not again.done(), "what was answered leaves room"
    await held.line.close()
    again.cancel()


async def test_what_a_request_asks_goes_on_the_account_of_its_caller(held: Held) -> None:
    """A key's rows and a ticket say of no tenant; without a credential nobody is on the account of the gateway."""
    await held.opened()
    tasks = [
        asking(held.line, GoneQueues([]), "caller"),
        asking(held.line, purge("other"), "caller"),
        asking(held.line, GoneQueues([]), ""),
        asking(held.line, purge("other"), ""),
    ]
    await eventually(lambda: len(held.line._asked) == 4)
    asks = [frame for frame in map(from_gateway, held.frames) if isinstance(frame, Asks)]
    assert [frame.whose for frame in asks] == ["caller", "caller", "", "other"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_waits_for_a_line_to_open_takes_room_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was sent was counted, so that a backend that was away gathered questions without end."""
    monkeypatch.setattr(lines, "LINE_ASKS_MAX", 8)
    held = Held(monkeypatch)
    tasks = [asking(held.line, purge("t")) for _ in range(5)]
    await held.turn()
    assert [task.done() for task in tasks] == [False] * 4 + [True]
    with pytest.raises(Overloaded):
        await tasks.pop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await held.line.close()


async def test_publishes_that_wait_leave_room_for_what_ends_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storm of publishes to a backend that was away for a moment had the acks of all tenants refused."""
    monkeypatch.setattr(lines, "LINE_PUBLISHES_MAX", 3)
    monkeypatch.setattr(lines, "LINE_CROWDED_MIN", 3)
    monkeypatch.setattr(lines, "LINE_CALLS_MAX", 5)
    held = Held(monkeypatch)
    for _ in range(4):
        await held.publish()
    (refused,) = held.answers
    assert isinstance(refused, Overloaded) and refused.retry_after_ms == 500
    assert refused.detail.startswith(
        "3 requests are already waiting for the backend of shard 0, the limit for requests like this"
    )
    for _ in range(3):
        settle = Settle(held.line.next_number(), Place("t", "q", 1), "ack", {})
        held.line.call(Call(settle, held.answers.append, 10_000, may_repeat=True))
    await held.turn()
    assert len(held.line._calls) == 5 and len(held.answers) == 2
    await held.line.close()


@pytest.mark.parametrize("kind", ["publish", "ack"])
async def test_a_tenant_whose_calls_wait_leaves_places_for_others(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Those of one whose shard was slow took all: publishes of all tenants were refused."""
    monkeypatch.setattr(lines, "LINE_PUBLISHES_MAX", 100)
    monkeypatch.setattr(lines, "LINE_CROWDED_MIN", 90)
    monkeypatch.setattr(lines, "LINE_COUNT_CALLS", 5)
    held = Held(monkeypatch)
    for _ in range(60 if kind == "publish" else 0):
        await held.publish()
    for _ in range(60 - len(held.line._calls)):
        settle = Settle(held.line.next_number(), Place("t", "q", 1), "ack", {})
        held.line.call(Call(settle, held.answers.append, 10_000, may_repeat=True))
    for _ in range(40):
        await held.publish()
    assert len(held.line._calls) == 90 and len(held.answers) == 10
    refused = held.answers[-1]
    assert isinstance(refused, Overloaded) and refused.retry_after_ms == 500
    assert refused.detail.startswith(
        "90 requests of tenant 't' are already waiting for the backend of shard 0, as many as"
    )
    for _ in range(12):
        await held.publish(tenant="u")
    assert len(held.line._calls) == 99 and len(held.answers) == 13, "what is left is shared likewise"
    await held.publish(tenant="v")
    assert len(held.line._calls) == 100
    await held.line.close()


async def test_a_tenant_whose_calls_were_answered_has_places_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_PUBLISHES_MAX", 100)
    monkeypatch.setattr(lines, "LINE_CROWDED_MIN", 90)
    monkeypatch.setattr(lines, "LINE_COUNT_CALLS", 5)
    held = Held(monkeypatch)
    for number in range(90):
        await held.publish(tenant="t" if number < 20 else "u")
    await held.publish(tenant="u")
    held.line._heard(Results([(number, None, None) for number in range(1, 21)], []))
    held.answers.clear()
    for _ in range(30):
        await held.publish(tenant="t")
    assert [type(answer) for answer in held.answers] == [Overloaded] * 3, "27 beside 71 leave three"
    await held.line.close()

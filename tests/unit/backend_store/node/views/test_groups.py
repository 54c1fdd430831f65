"""Consumer groups of a stream: each gets everything, from where it stands, whatever the others do."""

from __future__ import annotations

import pytest

from backend_store.core.leases.receipts import by_token
from backend_store.model import Conflict, InvalidRequest, NotFound, PushqError
from backend_store.node.commit.transaction import Transaction, TransactionResult
from backend_store.node.limits import COUNTED_CHUNKS, GROUP_IDLE_MS, GROUPS_PER_STREAM_MAX
from backend_store.node.views.group import Mode
from tests.support.streams import StreamWorld, all_receipts, seqs_of, stream
from tests.support.world import VISIBILITY_MS, Consumer, receipts_by_seq

BOTH = pytest.mark.parametrize("mode", ["offsets", "leases"])


# ------------------------------------------------------------------------------------------------ where it begins


@BOTH
def test_a_group_begins_where_it_is_told(mode: str) -> None:
    world = stream()
    for number, (wanted, seqs) in enumerate(
        [("earliest", [0, 1, 2, 3, 4, 5]), ("latest", []), ({"seq": 3}, [3, 4, 5]), ({"seq": 99}, [])]
    ):
        group = world.group(f"g{number}", wanted, mode)
        assert (group.lag, group.drained()) == (len(seqs), seqs), wanted


@BOTH
def test_a_group_begins_at_a_time(mode: str) -> None:
    world = stream(2)
    world.now_ms += 1000
    at = world.now_ms
    world.stored(b"2", b"3")
    world.now_ms += 1000
    world.stored(b"4")
    group = world.group(wanted={"time": at}, mode=mode)
    assert (group.lag, group.drained()) == (3, [2, 3, 4])


def test_an_unknown_group_begins_at_the_end_and_has_offsets() -> None:
    world = stream()
    group = world.opened("new")
    assert (group.group.mode, group.lag, group.drained()) == ("offsets", 0, [])
    world.stored(b"6")
    assert (group.lag, group.drained()) == (1, [6])


def test_a_known_group_stands_where_it_does_whatever_the_consumer_says() -> None:
    world = stream()
    world.group("g", {"seq": 4})
    assert world.opened("g", "earliest").drained() == [4, 5]


def test_what_was_published_before_a_group_was_asked_for_is_not_its_own() -> None:
    world = stream(2)
    world.publish(b"2")
    group = world.opened("new")
    world.settle_down()
    assert group.drained() == [2], "it was confirmed together with the group, so it is of the group"


def test_a_group_stays_what_it_is() -> None:
    world = stream()
    world.group(mode="leases")
    with pytest.raises(Conflict, match="mode 'leases', which cannot change"):
        world.group(mode="offsets")


def test_a_cursor_that_is_none_makes_no_group() -> None:
    world = stream()
    with pytest.raises(InvalidRequest):
        world.group(wanted={"cursor": "nonsense"})
    assert world.groups.all() == []


def test_a_stream_has_only_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.node.views.groups.GROUPS_PER_STREAM_MAX", 2)
    world = stream()
    world.group("a")
    world.group("b")
    with pytest.raises(Conflict, match="has reached the limit of 2 groups"):
        world.opened("c")
    world.delete("a")
    assert world.opened("c").lag == 0
    assert GROUPS_PER_STREAM_MAX == 1000


def test_two_who_ask_at_once_for_a_new_group_get_the_same() -> None:
    world = stream()
    answers: list[object] = []
    world.groups.open("new", None, answers.append)
    world.groups.open("new", "earliest", answers.append)
    world.settle_down()
    assert answers == [world.found("new").group] * 2


# ---------------------------------------------------------------------------------------------------- each its own


@BOTH
def test_every_group_gets_everything_and_takes_nothing_from_the_others(mode: str) -> None:
    world = stream()
    first, second = world.group("first", mode=mode), world.group("second", mode="leases")
    consumer = Consumer()
    assert first.drained(consumer) == [0, 1, 2, 3, 4, 5]
    assert all(first.ack(*all_receipts(consumer).values()))
    assert (first.lag, second.lag) == (0, 6)
    assert second.drained() == [0, 1, 2, 3, 4, 5]
    assert world.kept == [0, 1, 2, 3, 4, 5] and world.partition.state.live == 6


@BOTH
def test_a_receipt_of_one_group_means_nothing_to_another(mode: str) -> None:
    world = stream()
    first, second = world.group("first", mode=mode), world.group("second", mode=mode)
    receipt = receipts_by_seq(first.leased())[0]
    second.leased()
    second.view.settle({receipt[:-2]: 1}, lambda done: None)
    world.settle_down()
    assert second.lag == 6 and first.ack(receipt) == [True] and first.lag == 5


def test_acks_of_several_groups_in_one_request_find_their_own() -> None:
    world = stream()
    groups = [world.group(name, mode=mode) for name, mode in (("a", "offsets"), ("b", "leases"))]  # type: ignore[arg-type]
    receipts = [receipts_by_seq(group.leased())[0] for group in groups]
    assert groups[0].ack(*receipts, "nonsense") == [True, True, False]
    assert [group.lag for group in groups] == [5, 5]


@BOTH
def test_acking_again_is_answered_alike(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    receipts = receipts_by_seq(group.leased(2))
    assert group.ack(receipts[1]) == group.ack(receipts[1]) == [True]


@BOTH
def test_messages_that_are_none_are_neither_delivered_nor_counted(mode: str) -> None:
    world = StreamWorld()
    world.stored(b"0")
    world.stored_with_holes(b"1", b"repeat", b"3", holes=0b010)
    world.stored_with_holes(b"repeat", holes=0b1)
    world.stored(b"5")
    group = world.group(mode=mode)
    assert group.lag == 4
    consumer = Consumer()
    assert group.drained(consumer) == [0, 1, 3, 5]
    receipts = all_receipts(consumer)
    assert all(group.ack(*(receipts[seq] for seq in (0, 1, 3)))) and group.lag == 1
    assert world.group("later", {"seq": 2}).lag == 2


@BOTH
def test_the_lag_is_exact_at_any_place(mode: str) -> None:
    world = StreamWorld()
    published = 0
    for number in range(3 * COUNTED_CHUNKS):
        if number % 7 == 0:
            world.stored_with_holes(b"a", b"b", b"c", holes=0b101)
            published += 1
        else:
            world.stored(b"a", b"b")
            published += 2
        if number % 50 == 49:
            world.crash()
    for place in range(0, world.partition.state.end, 41):
        group = world.group(f"g{place}", {"seq": place}, mode)
        assert group.lag == len(group.drained()), place
    assert world.group("first", mode=mode).lag == published


@BOTH
def test_a_broken_chunk_is_no_lag_of_anybody(mode: str) -> None:
    world = stream(8)
    _, ahead, within = (world.group(name, mode=mode) for name in ("behind", "ahead", "within"))
    consumer = Consumer()
    assert ahead.drained(consumer) == list(range(8))
    assert all(ahead.ack(*all_receipts(consumer).values()))
    assert all(within.ack(*receipts_by_seq(within.leased(2)).values()))
    world.break_entry(4)
    world.crash()
    assert world.found("behind").drained() == [0, 1, 2, 3, 6, 7] and world.quarantined == [4]
    world.settle_down()
    lags = {name: world.found(name).lag for name in ("behind", "ahead", "within")}
    assert lags == {"behind": 6, "ahead": 0, "within": 4}
    world.crash()
    assert {name: world.found(name).lag for name in lags} == lags
    assert [world.group("new", {"seq": seq}).lag for seq in (0, 3, 5, 7)] == [6, 3, 2, 1]


@BOTH
def test_a_broken_chunk_that_a_group_holds_is_lost_and_the_others_go_on(mode: str) -> None:
    world = stream(8)
    group, consumer = world.group(mode=mode), Consumer()
    assert [seqs_of(group.leased(4, consumer)) for _ in range(2)] == [[0, 1], [2, 3]]
    held = [receipts_by_seq(lease) for lease in consumer.leases]
    world.break_entry(0)
    world.partition.read(0)  # somebody comes upon it
    for call in world.soon_calls:
        call()
    assert consumer.lost_receipts == [*held[0].values()]
    assert group.ack(*held[0].values()) == [False, False] and group.ack(held[1][3]) == [True]
    world.pass_time(VISIBILITY_MS)
    world.settle_down()
    came = group.drained()
    assert came == ([2, 4, 5, 6, 7] if mode == "leases" else [4, 5, 6, 7])
    assert group.view.core.in_flight == len(came)


# ------------------------------------------------------------------------------------------------- a restart


@BOTH
def test_a_group_outlives_a_crash(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    consumer = Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    assert all(group.ack(receipts[0], receipts[1], receipts[2]))
    world.crash()
    again = world.found()
    assert (again.group.mode, again.lag, again.drained()) == (mode, 3, [3, 4, 5])


@BOTH
def test_what_is_made_is_there_once_it_is_answered_and_not_before(mode: str) -> None:
    world = stream()
    answers: list[object] = []
    world.groups.put("g", "earliest", mode, answers.append)  # type: ignore[arg-type]
    world.committer.prepare()
    assert answers == [] and world.groups.find("g") is None and world.groups.all() == []
    world.crash()
    assert world.groups.find("g") is None


@BOTH
def test_a_receipt_from_before_a_crash_still_acks(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    consumer = Consumer()
    group.drained(consumer)
    receipts = all_receipts(consumer)
    world.settle_down()
    world.crash()
    group = world.found()
    assert group.ack(receipts[3]) == [True]
    assert group.drained() == ([4, 5] if mode == "offsets" else [0, 1, 2, 4, 5])


@BOTH
def test_leases_of_a_group_outlive_a_clean_stop(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    consumer = Consumer()
    receipts = receipts_by_seq(group.leased(2, consumer)) | receipts_by_seq(group.leased(2, consumer))
    kept = world.restart()
    group = world.found()
    assert sorted(seq for lease in kept for seq in seqs_of(lease)) == [0, 1, 2, 3]
    if mode == "offsets":
        assert group.take() is None, "somebody may come back to what is held"
    assert all(group.ack(*(receipts[seq] for seq in (0, 1, 2, 3))))
    assert (group.lag, group.drained()) == (2, [4, 5])


@BOTH
def test_a_group_that_nobody_uses_leaves_memory_and_loses_nothing(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    old = receipts_by_seq(group.leased(2))
    assert all(group.ack(old[0])) and group.nack(old[1]) == [True]
    for _ in range(3):
        world.settle_down()
        world.pass_time(GROUP_IDLE_MS)
    assert group.group.view is None and world.partition.views == {}
    assert group.lag == 5
    lease = group.leased(2)
    assert seqs_of(lease) == [1] or seqs_of(lease) == [1, 2]
    assert lease.token != old[1][:-2], "no receipt means two leases"
    assert group.ack(old[1]) == [False]


@BOTH
def test_a_group_with_a_consumer_stays_in_memory(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    group.group.is_wanted = lambda: True
    group.view  # noqa: B018 - opened
    for _ in range(3):
        world.pass_time(GROUP_IDLE_MS)
    assert group.group.view is not None


# ---------------------------------------------------------------------------------------------- seek and delete


@BOTH
def test_a_seek_begins_anew_and_takes_everything_back(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    consumer = Consumer()
    assert group.drained(consumer) == [0, 1, 2, 3, 4, 5]
    receipts = all_receipts(consumer)
    assert all(group.ack(*(receipts[seq] for seq in range(4))))
    assert world.group("g", {"seq": 1}).group is group.group
    assert group.lag == 5
    assert sorted(consumer.lost_receipts) == sorted([receipts[4], receipts[5]])
    assert consumer.released_total == 6
    assert group.ack(receipts[4]) == [False]
    assert group.drained() == [1, 2, 3, 4, 5]


@BOTH
def test_a_seek_outlives_a_crash_and_what_was_marked_before_is_forgotten(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    consumer = Consumer()
    group.drained(consumer)
    group.ack(*all_receipts(consumer).values())
    world.group("g", "earliest")
    world.crash()
    group = world.found()
    assert (group.lag, group.drained()) == (6, [0, 1, 2, 3, 4, 5])


def test_a_seek_wakes_who_waits() -> None:
    world = stream()
    group = world.group(wanted="latest")
    calls: list[int] = []
    group.group.on_ready = lambda: calls.append(group.view.ready)
    group.view  # noqa: B018 - opened
    world.group("g", "earliest")
    assert calls[-1] == 6


@BOTH
def test_a_deleted_group_is_gone_and_its_receipts_with_it(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    receipt = receipts_by_seq(group.leased())[0]
    world.delete("g")
    assert group.ack(receipt) == [False]
    world.crash()
    assert world.groups.all() == [] and world.kept == [0, 1, 2, 3, 4, 5]
    with pytest.raises(NotFound, match="no group 'g'"):
        world.delete("g")


@BOTH
@pytest.mark.parametrize("end", ["deleted", "sought"])
def test_a_step_of_a_group_that_ends_before_its_commit_settles_nothing(mode: Mode, end: str) -> None:
    """The commit cycle of all failed where it was decided, and nobody would have answered it."""
    world = stream()
    group = world.group(mode=mode)
    receipt = receipts_by_seq(group.leased())[0]
    if end == "deleted":
        world.groups.delete("g", lambda _: None)
    else:
        world.groups.put("g", "earliest", None, lambda _: None)
    assert world.committer.prepare()
    answers: list[TransactionResult | PushqError] = []
    world.partition.settle_and_publish(Transaction([(group.view, by_token([receipt]))], [], answers.append))
    world.settle_down()
    assert answers == [TransactionResult({})]
    assert world.stored(b"next").base == 6


def test_a_group_of_the_same_name_is_another_one() -> None:
    world = stream()
    group = world.group(mode="leases")
    old = receipts_by_seq(group.leased())[0]
    world.delete("g")
    again = world.group(mode="leases")
    again.leased()
    assert again.ack(old) == [False] and again.lag == 6


def test_a_purge_leaves_every_group_with_nothing() -> None:
    world = stream()
    groups = [world.group("a", mode="leases"), world.group("b", mode="offsets"), world.group("rests")]
    holders = Consumer(), Consumer()
    for group, holder in zip(groups, holders, strict=False):
        group.leased(3, holder)
    world.purge()
    world.settle_down()
    assert [group.lag for group in groups] == [0, 0, 0]
    assert [len(holder.lost_receipts) for holder in holders] == [2, 2], "what they hold of the first chunk"
    seq = world.stored(b"new").base
    assert [(group.lag, group.drained()) for group in groups] == [(1, [seq])] * 3
    world.crash()
    assert [world.found(name).lag for name in ("a", "b", "rests")] == [1, 1, 1]

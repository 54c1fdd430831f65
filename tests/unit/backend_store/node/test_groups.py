"""Consumer groups of a stream: each gets everything, from where it stands, whatever the others do."""

from __future__ import annotations

import pytest

from backend_store.model import Conflict, InvalidRequest, NotFound
from backend_store.node.limits import COUNTED_CHUNKS, GROUP_IDLE_MS, GROUPS_PER_STREAM_MAX
from backend_store.storage.engine import Table
from tests.support.streams import GroupOf, StreamWorld, seqs_of
from tests.support.world import VISIBILITY_MS, Consumer, attempts_by_seq, bodies_by_seq, receipts_by_seq

BOTH = pytest.mark.parametrize("mode", ["offsets", "leases"])


def stream(messages: int = 6, **settings: object) -> StreamWorld:
    """Messages in chunks of two."""
    world = StreamWorld(**settings)
    for number in range(0, messages, 2):
        world.stored(b"%d" % number, b"%d" % (number + 1))
    return world


def all_receipts(group: GroupOf, consumer: Consumer) -> dict[int, str]:
    """The receipts of all that the consumer holds, by seq."""
    return {seq: receipt for lease in consumer.leases for seq, receipt in receipts_by_seq(lease).items()}


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
    monkeypatch.setattr("backend_store.node.groups.GROUPS_PER_STREAM_MAX", 2)
    world = stream()
    world.group("a")
    world.group("b")
    with pytest.raises(Conflict, match="has 2 groups, the most it keeps"):
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
    assert all(first.ack(*all_receipts(first, consumer).values()))
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
    receipts = all_receipts(group, consumer)
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
    assert all(ahead.ack(*all_receipts(ahead, consumer).values()))
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


# ------------------------------------------------------------------------------------------------- a restart


@BOTH
def test_a_group_outlives_a_crash(mode: str) -> None:
    world = stream()
    group = world.group(mode=mode)
    consumer = Consumer()
    group.drained(consumer)
    receipts = all_receipts(group, consumer)
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
    receipts = all_receipts(group, consumer)
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
    receipts = all_receipts(group, consumer)
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
    group.ack(*all_receipts(group, consumer).values())
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
    groups[0].leased(3)
    groups[1].leased(3)
    world.purge()
    world.settle_down()
    assert [group.lag for group in groups] == [0, 0, 0]
    seq = world.stored(b"new").base
    assert [(group.lag, group.drained()) for group in groups] == [(1, [seq])] * 3
    world.crash()
    assert [world.found(name).lag for name in ("a", "b", "rests")] == [1, 1, 1]


# --------------------------------------------------------------------------------------------------- with leases


def test_a_leased_group_is_a_work_queue_over_the_stream() -> None:
    world = stream()
    group = world.group(mode="leases")
    one, other = Consumer(), Consumer()
    first, second = group.leased(2, one), group.leased(2, other)
    assert (seqs_of(first), seqs_of(second)) == ([0, 1], [2, 3])
    assert group.ack(receipts_by_seq(second)[3]) == [True]
    assert group.nack(receipts_by_seq(first)[1]) == [True]
    again = group.leased(2)
    assert (seqs_of(again), attempts_by_seq(again)) == ([1], {1: 2})
    assert (group.lag, group.view.ready, group.view.core.in_flight) == (5, 2, 3)


def test_a_leased_group_gives_up_after_the_last_attempt() -> None:
    world = stream(2, max_attempts=2)
    group, other = world.group(mode="leases"), world.group("other")
    for _ in range(2):
        assert group.nack(receipts_by_seq(group.leased())[0]) == [True]
    assert group.drained() == [1] and group.lag == 1
    dead = world.partition.read(0, 32)
    assert dead is not None and dead.messages.bodies == [b"0"]
    assert other.drained() == [0, 1] and world.kept == [0, 1], "for the others nothing has happened"


def test_a_lease_of_a_group_runs_out() -> None:
    world = stream(2)
    group, consumer = world.group(mode="leases"), Consumer()
    lease = group.leased(2, consumer)
    world.pass_time(VISIBILITY_MS)
    world.settle_down()
    assert len(consumer.lost_receipts) == 2
    assert attempts_by_seq(group.leased(2)) == {0: 2, 1: 2}
    assert group.ack(lease.token + "00") == [False]


def test_a_delay_of_a_leased_group_outlives_a_crash() -> None:
    world = stream(2)
    group = world.group(mode="leases")
    assert group.nack(receipts_by_seq(group.leased())[0], due_ms=world.now_ms + 5000) == [True]
    world.crash()
    group = world.found()
    assert group.drained() == [1]
    world.pass_time(5000)
    assert group.drained() == [0]


def test_what_is_settled_out_of_order_stays_settled() -> None:
    world = stream(8)
    group = world.group(mode="leases")
    consumer = Consumer()
    group.drained(consumer)
    receipts = all_receipts(group, consumer)
    assert all(group.ack(*(receipts[seq] for seq in (2, 3, 6, 7, 5))))
    assert (group.position, group.lag) == (0, 3)
    world.crash()
    group = world.found()
    assert group.drained() == [0, 1, 4]


def test_marks_go_when_the_group_has_passed_them() -> None:
    world = stream(8)
    group = world.group(mode="leases")
    consumer = Consumer()
    group.drained(consumer)
    receipts = all_receipts(group, consumer)
    group.ack(*(receipts[seq] for seq in (2, 3, 4, 5)))
    assert len(world.engine.scan(Table.MARKS, b"", b"\xff" * 20, 100)) == 4
    group.ack(receipts[0], receipts[1])
    world.settle_down()
    assert len(world.engine.scan(Table.MARKS, b"", b"\xff" * 20, 100)) == 1
    assert group.position == 6
    group.ack(receipts[6], receipts[7])
    assert world.engine.scan(Table.MARKS, b"", b"\xff" * 20, 100) == []


def test_a_group_may_begin_within_a_chunk_and_goes_on_there_after_a_crash() -> None:
    world = StreamWorld()
    world.stored(*[b"x"] * 10)
    group = world.group(wanted={"seq": 4}, mode="leases")
    assert group.ack(receipts_by_seq(group.leased())[4]) == [True]
    world.crash()
    group = world.found()
    assert (group.lag, group.drained()) == (5, [5, 6, 7, 8, 9])


# --------------------------------------------------------------------------------------------------- with offsets


def test_with_offsets_one_consumer_at_a_time_gets_messages() -> None:
    world = stream()
    group, one, other = world.group(), Consumer(), Consumer()
    lease = group.leased(1, one)
    assert group.take(1, other) is None
    more = group.leased(2, one)
    assert seqs_of(more) == [1], "what is left of the chunk"
    assert all(group.ack(receipts_by_seq(more)[1]))
    assert seqs_of(group.leased(2, other)) == [2, 3], "nothing is out, so it may be another one's turn"
    assert group.take(1, one) is None and lease.bits == 0


def test_with_offsets_an_ack_settles_everything_before_it() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(group, consumer)
    assert group.ack(receipts[4]) == [True]
    assert (group.lag, group.position, consumer.released_total) == (1, 5, 5)
    assert group.ack(receipts[1]) == [True], "it was settled by the same consumer"
    world.crash()
    assert world.found().drained() == [5]


def test_with_offsets_a_nack_brings_back_everything_behind_it_in_order() -> None:
    world = stream(8)
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(group, consumer)
    assert group.nack(receipts[3]) == [True]
    assert sorted(consumer.lost_receipts) == sorted(receipts[seq] for seq in (4, 5, 6, 7))
    assert group.ack(receipts[6]) == [False], "it comes again: an ack would settle what was given back, too"
    assert group.ack(receipts[1]) == [True]
    group.give_back(consumer)
    again = Consumer()
    assert group.drained(again) == [2, 3, 4, 5, 6, 7]
    assert [attempts_by_seq(lease) for lease in again.leases][:2] == [{2: 2, 3: 2}, {4: 2, 5: 2}]


def test_with_offsets_several_nacks_in_one_request_are_one_way_back() -> None:
    world = stream(8)
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(group, consumer)
    assert group.nack(receipts[6], receipts[2], receipts[4]) == [True, True, True]
    group.give_back(consumer)
    assert group.drained() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_with_offsets_a_delay_holds_the_whole_group() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    receipts = all_receipts(group, consumer)
    assert group.nack(receipts[2], due_ms=world.now_ms + 5000) == [True]
    assert group.ack(receipts[1]) == [True]
    assert group.take() is None
    world.pass_time(5000)
    assert group.drained() == [2, 3, 4, 5]


def test_with_offsets_a_message_that_comes_back_behind_a_delayed_one_goes_first() -> None:
    world = stream(2)
    group, consumer = world.group(), Consumer()
    receipts = receipts_by_seq(group.leased(2, consumer))
    assert group.nack(receipts[1], due_ms=world.now_ms + 5000) == [True]
    assert group.nack(receipts[0]) == [True]
    world.pass_time(5000)
    assert group.drained() == [0, 1]


def test_with_offsets_the_back_off_holds_the_group() -> None:
    world = stream(2, retry_backoff_ms=1000)
    group, consumer = world.group(), Consumer()
    assert group.nack(receipts_by_seq(group.leased(1, consumer))[0]) == [True]
    assert group.take() is None
    world.pass_time(1000)
    assert group.drained() == [0, 1]


def test_with_offsets_a_lease_that_runs_out_brings_back_what_is_behind_it() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.leased(2, consumer, 1000)
    group.leased(2, consumer, 60_000)
    receipts = all_receipts(group, consumer)
    world.pass_time(1000)
    world.settle_down()
    assert sorted(consumer.lost_receipts) == sorted(receipts.values())
    assert consumer.released_total == 4
    assert group.drained() == [0, 1, 2, 3, 4, 5]


def test_with_offsets_a_receipt_that_ran_out_acks_while_nobody_else_has_its_messages() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.leased(2, consumer)
    receipts = all_receipts(group, consumer)
    world.pass_time(VISIBILITY_MS)
    world.settle_down()
    assert group.ack(receipts[0]) == [True] and group.lag == 5
    lease = group.leased(1)
    assert seqs_of(lease) == [1] and group.ack(receipts[1]) == [False]


def test_with_offsets_the_next_consumer_goes_on_from_the_committed_place() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    group.drained(consumer)
    assert group.ack(all_receipts(group, consumer)[1]) == [True]
    group.give_back(consumer)
    after = Consumer()
    assert group.drained(after) == [2, 3, 4, 5]
    assert bodies_by_seq(after.leases[0]) == {2: b"2", 3: b"3"}


def test_with_offsets_what_was_not_sent_goes_back_uncounted() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    first, second, third = (group.leased(2, consumer) for _ in range(3))
    for lease in (third, second):
        group.view.unsent(lease)
    assert group.ack(receipts_by_seq(first)[1]) == [True]
    again = Consumer()
    assert group.drained(again) == [2, 3, 4, 5]
    assert [attempts_by_seq(lease) for lease in again.leases] == [{2: 1, 3: 1}, {4: 1, 5: 1}]


def test_with_offsets_extending_one_batch_keeps_the_order() -> None:
    world = stream()
    group, consumer = world.group(), Consumer()
    lease = group.leased(2, consumer, 1000)
    receipts = receipts_by_seq(lease)
    assert group.extend(receipts[1], visibility_ms=60_000) == [True]
    world.pass_time(1000)
    world.settle_down()
    assert sorted(consumer.lost_receipts) == sorted(receipts.values()), "1 stands behind 0"
    assert group.drained() == [0, 1, 2, 3, 4, 5]

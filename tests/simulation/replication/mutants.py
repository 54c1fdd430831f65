"""Protocols with one rule less. Each must be found out by the simulation: one that survives is a hole in it.

A core mutant is a function of the real core with a piece of its text changed, for as long as `mutated` lasts; where the
text is not found, the list is out of date and says so. A shell mutant leaves out a duty, by its name in `node`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any, NamedTuple

from backend_store.core.replication import controller, entries, moving, record, replica, stranded
from backend_store.core.replication.follower import Follower
from backend_store.core.replication.leader import Leader
from backend_store.core.replication.log import ReplicaLog
from backend_store.core.replication.progress import Followers
from backend_store.core.replication.replica import Replica
from backend_store.core.replication.reshaping import Reshaping
from tests.unit.backend_store.core.replication import test_follower, test_leader, test_moving


class Piece(NamedTuple):
    function: Callable[..., Any]
    before: str
    after: str


Known = int | Callable[[], None]
"""A world's seed, or a story that is told by hand because worlds tell it too rarely."""


class Edit:
    """`known` finds the mutant out, and soon. Rules that stand in for each other go together."""

    def __init__(self, known: Known, function: Callable[..., Any], before: str, after: str, *more: Piece):
        self.known = known
        self.pieces = (Piece(function, before, after), *more)


KEEPS_POSITION = """if found is not None and sender.inc > found.identity.inc:
        found.identity, found.request = sender, -1
    if found is None:"""

CORE_MUTANTS: dict[str, Edit] = {
    # Logs and their ends.
    "cuts its log at its high watermark when it begins to follow": Edit(
        0,
        Follower.__init__,
        "self._agreed = Offset(0)",
        "log.truncate(log.high_watermark); out.append(Truncate(log.high_watermark, False)); self._agreed = Offset(0)",
    ),
    "compares how long logs are, and not their epochs": Edit(
        3,
        Leader.on_fetch,
        "common != fetch.last_epoch or fetch.end > end or log.epoch_before(fetch.end) != common",
        "fetch.end > log.end",
    ),
    "steps back only once": Edit(
        2,
        Follower._position,
        "return self._probe or",
        "return (self._probe[0], self._log.last_epoch) if self._probe else",
    ),
    "cuts at the leader's end of an epoch that it does not have": Edit(
        12,
        Follower._on_diverged,
        "min(end, answer.end, asked) if known == answer.common else min(end, asked)",
        "min(answer.end, asked)",
    ),
    "keeps what lies beyond where the logs are one": Edit(2, Follower._agree, "if end == log.end:", "if True:"),
    "takes any answer for the latest one's": Edit(
        3, Follower._is_awaited, "self.asked_ms is not None and answer.request == self.request and", ""
    ),
    "numbers its requests anew in each life": Edit(
        test_follower.test_answer_to_a_request_of_a_former_life_does_not_count,
        replica.first_request,
        "return me.inc << REQUEST_BITS",
        "return 0",
    ),
    "believes what the network brings": Edit(
        13, entries.decode, "if crc != crc_extend(", "if 0 and crc != crc_extend("
    ),
    "takes a commit of before a truncation for one after it": Edit(
        test_leader.test_commit_that_began_before_a_truncation_does_not_make_what_came_after_durable,
        ReplicaLog.committed,
        "if mark.generation == self._generation:",
        "if True:",
    ),
    # What is on disks.
    "acknowledges what is not on its disk": Edit(0, Follower.go_on, "and self._log.is_clean", ""),
    "counts what is not on the leader's own disk": Edit(
        0,
        ReplicaLog.append,
        "self._tail_size += len(entry.data)",
        "self._tail_size += len(entry.data); self.durable_end = self.end",
    ),
    # Who counts.
    "commits with too few in sync": Edit(0, Leader.advance, " and not self.record.is_short:", ":"),
    "commits without those that lag": Edit(
        1,
        Reshaping.counted,
        "if node != self._me.node:",
        "if node != self._me.node and self._asked_ms - self._followers.caught_up_ms(node) < 500:",
    ),
    "drops before it is told that it may": Edit(
        0, Reshaping.counted, "in self.record.isr:", "in (self.pending.record if self.pending else self.record).isr:"
    ),
    "lets join whom it does not count yet": Edit(
        12, Reshaping.counted, "if self.joining is not None and self.pending is not None:", "if False:"
    ),
    "lets join who is behind": Edit(
        1, Reshaping._propose_join, "progress.end >= self._log.high_watermark and progress.end > barrier", "True"
    ),
    "counts what a node had in another life, on another disk": Edit(
        5,
        Followers.end_of,
        "or found.identity.disk != disks.get(node)",
        "",
        Piece(Followers.of, "if found is None or sender.inc > found.identity.inc:", KEEPS_POSITION),
    ),
    "takes the refusal of one change for that of another": Edit(
        test_leader.test_refusal_of_one_change_is_not_taken_for_that_of_another,
        Reshaping.refused,
        "and self.pending.id == change.id",
        "",
    ),
    "forgets a change whose answer is late": Edit(
        test_leader.test_change_without_an_answer_is_submitted_again_the_very_same,
        Reshaping.propose,
        "self._out.append(Submit(self.pending))",
        "self.pending = self.joining = None",
    ),
    "hands over to who is not in sync": Edit(
        2,
        Reshaping._propose_leaving,
        "elif target in record.isr and",
        "elif (p := self._followers.get(target)) is not None and p.end is not None and",
    ),
    # Who leads.
    "leads in a life that the record does not name": Edit(0, Replica._take_role, "record.leader_inc == me.inc and", ""),
    "obeys a record older than its log, in any life": Edit(
        0, Replica._take_role, "record.leader_inc == me.inc and record.epoch > self.log.last_epoch", "True"
    ),
    "elects whoever lives": Edit(1, controller._choose, "if unclean:", "if True:"),
    "takes any disk for the one that was in sync": Edit(
        2,
        controller._is_whole,
        "and sessions[node].disk == record.disks.get(node)",
        "",
        Piece(controller._has_lost_disk, "sessions[node].disk != record.disks[node]", "False"),
    ),
    "brings back sessions of lives that are over": Edit(0, controller.is_stale, "asks.inc <= known.inc", "False"),
    "keeps those eligible without whom the log went on": Edit(
        40, record.joined, "() if len(isr) >= record.min_in_sync else", ""
    ),
    "keeps eligible whom an election drops from enough": Edit(6, record.elected, "if after.is_short:", "if True:"),
    "changes a record without comparing versions": Edit(
        16, record.may_apply, "record.version == change.expects and", ""
    ),
    "answers before its barrier": Edit(0, Leader.confirmed_end, "if end > self.barrier else Offset(0)", ""),
    "confirms though nobody vouches for it": Edit(
        52,
        Leader._is_vouched_for,
        "if now_ms < self._confirms_from_ms:",
        "if True:\n        return True\n    if now_ms < 0:",
    ),
    "confirms alone whether or not others follow": Edit(
        test_leader.test_async_leader_without_the_coordinator_goes_on_while_all_others_follow_it,
        Leader._is_vouched_for,
        "return bool(peers) and all(",
        "return bool(peers) or all(",
    ),
    "hands over before the other has everything": Edit(
        test_leader.test_handover_waits_until_the_target_has_everything_and_takes_nothing_new,
        Reshaping._propose_leaving,
        "self._followers.end_of(target, record.disks) == log.end == log.durable_end",
        "self._followers.get(target)",
    ),
    "answers fetches of any epoch": Edit(
        test_leader.test_fetch_of_another_epoch_is_answered_with_the_own_one,
        Replica._on_request,
        "leader is None or request.epoch != leader.epoch",
        "leader is None",
    ),
    # Snapshots, and what is async.
    "takes a snapshot for as old as its first page": Edit(
        16, Follower._on_page, "max(install.whole_from, page.applied)", "install.base.end"
    ),
    "goes on from where a snapshot was read, and not from what is final": Edit(
        0, ReplicaLog.snapshot_base, "base = self._base", "base = self.last"
    ),
    "throws away what it cuts off": Edit(
        test_follower.test_tail_that_an_async_follower_cuts_off_goes_to_quarantine_too,
        Follower._agree,
        'keeps=self._record.mode == "async"',
        "keeps=False",
    ),
    "throws away what a snapshot replaces": Edit(
        4, Follower._switch, 'keeps = self._record.mode == "async" and', "keeps = False and"
    ),
    "replaces its state while it is counted on": Edit(
        test_follower.test_tail_of_an_async_leader_goes_to_quarantine_and_its_effects_are_replaced,
        Follower._may_switch,
        'record.mode == "sync" or',
        "True or",
    ),
    "goes on under a new leader with half a snapshot": Edit(
        test_follower.test_async_replica_with_half_a_snapshot_takes_another_from_the_next_leader,
        Follower.__init__,
        'if record.mode == "async" and not log.is_whole:',
        "if False:",
    ),
    "undoes no effects": Edit(
        16, Follower._agree, "is_undone = end < log.applied or end < log.whole_from", "is_undone = False"
    ),
}

MOVE_MUTANTS: dict[str, Edit] = {
    "counts a new copy at once": Edit(
        0,
        record.admitted,
        "return replace(record, replicas=(*_without(record.replicas, node), node), left=left)",
        "disks = {**record.disks, node: DiskId(f'{node}/0')}\n"
        "    return replace(\n"
        "        record, replicas=(*record.replicas, node), left=left, isr=(*record.isr, node), disks=disks\n"
        "    )",
    ),
    "takes copies out before others have everything": Edit(
        0, moving.may_be_removed, "there >= (len(wanted) if node in record.isr else record.min_in_sync)", "True"
    ),
    "takes the leader out": Edit(
        46,
        moving.may_be_removed,
        "if node == record.leader:",
        "if False:",
        Piece(record.removed, 'assert node != record.leader, "a leader hands over first"', ""),
    ),
    "lets go of what it has to keep": Edit(
        0,
        moving.letting_go,
        "if me.node in record.replicas or me.node in wanted or",
        "if",
        Piece(record.let_go, 'assert node not in record.replicas, "a replica keeps what it has"', ""),
    ),
    "follows though it is no replica": Edit(
        test_follower.test_replica_that_is_taken_out_fetches_no_more,
        Replica.on_record,
        "goes_on = goes_on and self.me.node in record.replicas",
        "pass",
    ),
    "is admitted again in the life that has let go": Edit(
        test_moving.test_who_has_let_go_is_admitted_again_only_in_another_life,
        moving._may_be_admitted,
        "and session.inc > record.left.get(session.node, NO_INCARNATION)",
        "",
    ),
    "keeps in quarantine what the other log has": Edit(
        54, stranded.where, 'return "there" if known.epoch == epoch else "lacked"', 'return "lacked"'
    ),
}
"""Found out by worlds in which replicas move."""

SHELL_MUTANTS = {
    "answers a duplicate at once": 0,
    "knows only what it took itself": 0,
    "forgets what is not applied": 0,
    "delivers without a lease": 149,
    "counts its lives in memory": 47,
}
MOVE_SHELL_MUTANTS = {"deletes before it has let go": 25}


@contextmanager
def mutated(edit: Edit) -> Iterator[None]:
    """The functions have other code meanwhile; whoever holds them sees the change."""
    with ExitStack() as stack:
        for piece in edit.pieces:
            stack.enter_context(_changed(piece))
        yield


@contextmanager
def _changed(piece: Piece) -> Iterator[None]:
    function = piece.function
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(piece.before) == 1, f"{piece.before!r} stands {source.count(piece.before)} times in {function}"
    made: dict[str, Any] = {}
    source = source.replace(piece.before, piece.after)
    exec(compile(source, function.__code__.co_filename, "exec"), function.__globals__, made)
    real = function.__code__
    function.__code__ = made[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = real

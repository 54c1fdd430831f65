from msgspec.structs import replace

from backend_store.core.replication.controller import Sessions
from backend_store.core.replication.moving import is_settled, letting_go, may_be_removed, next_step
from backend_store.core.replication.record import (
    ControllerIs,
    Identity,
    Incarnation,
    NodeId,
    NodeIs,
    PartitionRecord,
    joined,
)
from tests.support.replicas import A, B, C, changed, disk_of, record_of

D = NodeId("d")


def sessions(*nodes: NodeId, inc: int = 1) -> Sessions:
    return {node: Identity(node, Incarnation(inc), disk_of(node)) for node in nodes}


def step(record: PartitionRecord, *wanted: NodeId, alive: Sessions) -> PartitionRecord | None:
    change = next_step(record, wanted, alive, term=7)
    if change is None:
        return None
    assert ControllerIs(7) in change.guards and change.expects == record.version
    return change.record


def test_copy_is_admitted_first_and_the_other_goes_when_it_has_everything() -> None:
    alive = sessions(A, B, C, D)
    first = step(record_of(A, B, C), A, B, D, alive=alive)
    assert first is not None and first.replicas == (A, B, C, D) and first.isr == (A, B, C)
    assert step(first, A, B, D, alive=alive) is None, "it has nothing yet"
    ready = changed(joined(first, D, disk_of(D)))
    second = step(ready, A, B, D, alive=alive)
    assert second is not None and second.replicas == second.isr == (A, B, D)
    assert is_settled(second, (A, B, D)) and not is_settled(ready, (A, B, D))
    assert step(second, A, B, D, alive=alive) is None


def test_dead_copy_goes_when_enough_of_the_wanted_ones_have_everything() -> None:
    record = changed(record_of(A, B, C), replicas=(A, B, C, D), isr=(A, B))
    after = step(record, A, B, D, alive=sessions(A, B))
    assert after is not None and after.replicas == (A, B, D) and after.isr == (A, B)
    short = changed(record, isr=(A,), elr=(B,))
    assert step(short, A, B, D, alive=sessions(A, B)) is None, "too few have everything"


def test_copy_in_sync_stays_while_one_of_the_wanted_lacks_anything() -> None:
    record = changed(record_of(A, B, C), replicas=(A, B, C, D), isr=(A, C, D))
    assert not may_be_removed(record, C, (A, B, D))
    assert may_be_removed(changed(record, isr=(A, B, C, D)), C, (A, B, D))


def test_leader_is_never_taken_out() -> None:
    record = changed(record_of(A, B, C), replicas=(A, B, C, D), isr=(A, B, C, D))
    assert step(record, B, C, D, alive=sessions(A, B, C, D)) is None
    led_by_b = changed(record, leader=B)
    after = step(led_by_b, B, C, D, alive=sessions(A, B, C, D))
    assert after is not None and after.replicas == after.isr == (B, C, D)


def test_who_is_not_here_is_not_admitted() -> None:
    assert step(record_of(A, B, C), A, B, D, alive=sessions(A, B, C)) is None
    change = next_step(record_of(A, B, C), (A, B, D), sessions(A, B, C, D), term=7)
    assert change is not None and NodeIs(D, Incarnation(1)) in change.guards


def test_fewer_than_must_be_in_sync_are_never_wanted() -> None:
    assert step(record_of(A, B, C), A, alive=sessions(A, B, C)) is None


def test_home_of_the_leadership_stands_first() -> None:
    after = step(record_of(A, B, C), C, A, B, alive=sessions(A, B, C))
    assert after is not None and after.replicas == (C, A, B) and after.leader == A


def test_node_lets_go_only_of_what_it_neither_has_nor_shall_have_to_keep() -> None:
    me = Identity(D, Incarnation(1), disk_of(D))
    record = record_of(A, B, C)
    assert letting_go(record, me, (A, B, D)) is None
    assert letting_go(changed(record, replicas=(A, B, C, D)), me, (A, B, C)) is None
    change = letting_go(record, me, (A, B, C))
    assert change is not None and change.record.left == {D: 1} and change.guards == (NodeIs(D, Incarnation(1)),)
    assert letting_go(change.record, me, (A, B, C)) is None, "it has"


def test_who_has_let_go_is_admitted_again_only_in_another_life() -> None:
    record = replace(record_of(A, B, C), left={D: Incarnation(1)})
    assert step(record, A, B, D, alive=sessions(A, B, C, D)) is None
    after = step(record, A, B, D, alive=sessions(A, B, C, D, inc=2))
    assert after is not None and after.replicas == (A, B, C, D) and after.left == {}

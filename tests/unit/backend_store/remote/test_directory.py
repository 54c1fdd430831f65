"""A gateway finds a shard's leader, whatever backends that are behind say of it."""

from __future__ import annotations

from backend_store.remote.directory import DoorDirectory, FixedDirectory

A, B, C = ("192.0.2.11", 1), ("192.0.2.12", 1), ("192.0.2.13", 1)
NAMES = {address: f"{address[0]}:{address[1]}" for address in (A, B, C)}


def asked(says: dict[tuple[str, int], tuple[str, int] | None], count: int = 6) -> list[tuple[str, int]]:
    """Who is asked, where none of them leads; `says`: whom each one names."""
    directory = FixedDirectory([A, B, C])
    found = []
    for _ in range(count):
        address = directory.address(0)
        assert address is not None
        found.append(address)
        leader = says[address]
        directory.failed(0, address, None if leader is None else NAMES[leader])
    return found


def test_where_nobody_knows_each_one_is_asked_in_turn() -> None:
    assert asked(dict.fromkeys((A, B, C)), 4) == [A, B, C, A]


def test_who_is_named_is_asked_next() -> None:
    assert asked({A: C, B: None, C: None}, 3) == [A, C, B]


def test_backend_that_names_itself_does_not_keep_a_gateway() -> None:
    """Cut off from the coordinator it gave its shard up, and knew of no other leader than itself."""
    assert asked({A: A, B: None, C: None}, 3) == [A, B, C]


def test_backends_that_name_each_other_do_not_keep_a_gateway() -> None:
    assert C in asked({A: B, B: A, C: None})


def test_leader_that_was_lost_is_not_asked_because_the_others_still_name_it() -> None:
    """Connecting to one whose cable is out takes its time, while the next one begins to lead."""
    assert asked({A: None, B: A, C: A}, 4) == [A, B, C, A]


def test_leader_that_is_back_is_found_by_the_word_of_others() -> None:
    directory = FixedDirectory([A, B, C])
    directory.failed(0, A, None)
    assert directory.address(0) == B  # which led, until it was lost, too
    directory.failed(0, B, None)
    assert directory.address(0) == C
    directory.failed(0, C, NAMES[A])
    assert directory.address(0) == A


def test_leader_without_a_turn_of_its_own_is_found_again_by_the_word_of_others() -> None:
    """It joined later, so this gateway's settings do not name it; its connection was lost for a moment."""
    d = ("192.0.2.14", 1)
    directory = FixedDirectory([A, B, C])
    directory.failed(0, A, f"{d[0]}:{d[1]}")
    assert directory.address(0) == d
    directory.failed(0, d, None)
    asked = []
    while len(asked) < 4 and d not in asked:
        address = directory.address(0)
        assert address is not None
        asked.append(address)
        directory.failed(0, address, f"{d[0]}:{d[1]}")
    assert asked[-1] == d


def test_one_address_is_asked_again() -> None:
    directory = FixedDirectory([A])
    directory.failed(0, A, NAMES[A])
    assert directory.address(0) == A


def test_a_door_whose_line_goes_home_is_asked_there() -> None:
    """The line that was left for it ends, and that is no word against it."""
    directory = DoorDirectory([A, B])
    directory.failed(0, A, None)
    assert (directory.address(0), directory.is_away) == (B, True)
    directory.go_home()
    directory.failed(0, B, None)
    assert (directory.address(0), directory.is_away) == (A, False)

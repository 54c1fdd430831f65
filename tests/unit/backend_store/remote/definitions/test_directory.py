"""A gateway finds a shard's leader, whatever backends that are behind say of it."""

from __future__ import annotations

from backend_store.remote.definitions.directory import DoorDirectory, FixedDirectory

A, B, C, D, E = ((f"192.0.2.1{n}", 1) for n in range(1, 6))
NAMES = {address: f"{address[0]}:{address[1]}" for address in (A, B, C, D)}


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
    directory = FixedDirectory([A, B, C])
    directory.failed(0, A, NAMES[D])
    assert directory.address(0) == D
    directory.failed(0, D, None)
    asked = []
    while len(asked) < 4 and D not in asked:
        address = directory.address(0)
        assert address is not None
        asked.append(address)
        directory.failed(0, address, NAMES[D])
    assert asked[-1] == D


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


def rounds(directory: FixedDirectory, count: int) -> list[tuple[str, int]]:
    """Who is asked, where nobody knows of a leader."""
    found = []
    for _ in range(count):
        address = directory.address(0)
        assert isinstance(address, tuple)
        found.append(address)
        directory.failed(0, address, None)
    return found


def test_those_that_are_there_are_asked_and_of_the_named_ones_that_are_gone_one_in_each_round() -> None:
    directory = FixedDirectory([A, B, C])
    directory.know([A, D, E])
    rounds(directory, 5)  # what was still to be asked of the first round
    assert sorted(rounds(directory, 4)) == sorted([A, D, E, B])
    assert sorted(rounds(directory, 4)) == sorted([A, D, E, C])


def test_who_is_gone_for_good_and_was_never_named_is_not_asked_again() -> None:
    directory = FixedDirectory([A])
    directory.know([A, D])
    directory.know([A, E])
    assert set(rounds(directory, 6)) == {A, E}


def test_where_nobody_that_was_named_is_left_the_others_are_asked() -> None:
    directory = FixedDirectory([A])
    directory.know([D, E])
    directory.failed(0, A, None)
    assert {D, E} <= set(rounds(directory, 3))


def test_backends_that_say_different_things_do_not_keep_a_gateway_from_the_others() -> None:
    """Each word takes the place of the one before while nobody is connected."""
    directory = FixedDirectory([A, B, C])
    asked = []
    for _ in range(12):
        address = directory.address(0)
        assert isinstance(address, tuple)
        asked.append(address)
        directory.know([A, B, C, D] if address in (A, C) else [A, B, C, D, E])
        directory.failed(0, address, None)
    assert {A, B, C, D, E} == set(asked)


def test_a_door_goes_on_at_its_host_when_it_hears_of_others_and_to_its_own_when_that_host_is_gone() -> None:
    directory = DoorDirectory([A, B, C])
    directory.failed(0, A, None)
    directory.know([A, D, B])
    assert (directory.address(0), directory.is_away) == (B, True)
    directory.know([A, D])
    assert (directory.address(0), directory.is_away) == (A, False)

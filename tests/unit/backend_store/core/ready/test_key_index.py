"""A chunk by its keys: the same answers whether it keeps its column of keys or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.limits import FEW_KEYS_MAX, KEYED_COLUMNS_MAX
from backend_store.core.ready.key_index import FewKeys, Key, Spot, Spots
from tests.support.chunks import chunk_state

columns = st.lists(st.sampled_from([None, *(f"k{n}" for n in range(40))]), min_size=1, max_size=256)


def bits_by_key(keys: list[Key], bits: int) -> dict[Key, int]:
    wanted: dict[Key, int] = {}
    for index, key in enumerate(keys):
        if bits >> index & 1:
            wanted[key] = wanted.get(key, 0) | 1 << index
    return wanted


@given(columns, st.integers(0, (1 << 256) - 1))
def test_bits_are_split_by_key_and_keys_found_by_bits(keys: list[Key], bits: int) -> None:
    state = chunk_state(0, keys)
    bits &= state.full
    spot = Spot(state)
    wanted = bits_by_key(keys, bits)
    assert spot.split(bits) == wanted
    assert set(spot.keys_at(bits)) == set(wanted)
    assert list(state.keys or ()) == keys


@given(columns)
def test_repeated_messages_are_those_that_share_their_key(keys: list[Key]) -> None:
    repeated = Spot(chunk_state(0, keys)).repeated
    assert [bool(repeated >> index & 1) for index in range(len(keys))] == [keys.count(key) > 1 for key in keys]


@given(columns, st.integers(0, (1 << 256) - 1), st.integers(0, (1 << 256) - 1))
def test_a_shrunk_chunk_still_knows_the_keys_of_what_is_not_settled(keys: list[Key], settled: int, held: int) -> None:
    state = chunk_state(0, keys)
    spot = Spot(state)
    spot.held = held & state.full
    state.settled = settled & state.full
    spot.shrink()
    kept = state.present | spot.held
    assert spot.split(kept) == bits_by_key(keys, kept)
    assert set(spot.keys_at(kept)) == set(bits_by_key(keys, kept))


def test_a_chunk_without_keys_has_one_key_that_is_none() -> None:
    state = chunk_state(0, [None] * 5)
    state.keys = None
    spot = Spot(state)
    assert spot.split(0b00110) == {None: 0b00110}
    assert list(spot.keys_at(0b100)) == [None]


def test_a_chunk_of_few_keys_gives_its_column_up_at_once() -> None:
    keys = [f"k{n % FEW_KEYS_MAX}" for n in range(100)]
    state = chunk_state(0, keys)
    assert not Spot(state).is_whole
    assert isinstance(state.keys, FewKeys)
    assert (list(state.keys), state.keys[3:5], state.keys[-1], len(state.keys)) == (keys, keys[3:5], keys[-1], 100)
    with pytest.raises(IndexError):
        state.keys[100]
    assert Spot(state).split(state.full) == bits_by_key(keys, state.full)


def test_only_the_newest_chunks_keep_whole_columns() -> None:
    spots = Spots()
    many = [f"k{n}" for n in range(FEW_KEYS_MAX + 1)]
    kept = [spots.of(chunk_state(base * 256, many)) for base in range(KEYED_COLUMNS_MAX + 3)]
    assert [spot.is_whole for spot in kept[:4]] == [False, False, False, True]
    assert kept[0].split(kept[0].state.full) == kept[5].split(kept[5].state.full)


def test_a_chunk_is_forgotten_when_nobody_waits_for_anything_of_it() -> None:
    spots = Spots()
    spot = spots.of(chunk_state(0, ["a"]))
    for attribute in ("ready", "held", "runs"):
        setattr(spot, attribute, 1)
        assert not spots.drop_if_idle(spot)
        setattr(spot, attribute, 0)
    assert spots.drop_if_idle(spot)
    assert 0 not in spots

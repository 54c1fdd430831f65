"""Names of the messages of one call: a prefix and a number of three digits."""

from __future__ import annotations

import pytest

from backend_store.core.dedupe.numbered_ids import NumberedNames, listed


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 1), (0, 1000), (7, 93), (999, 1), (1000, 0)])
def test_a_block_lists_the_names_that_its_call_gave(first: int, count: int) -> None:
    names = NumberedNames("a%b-", 1000)[first : first + count]
    wanted = [f"a%b-{number:03d}" for number in range(first, first + count)]
    assert listed(names.packed(), count) == [*names] == [names[at] for at in range(count)] == wanted


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (1, 1000), (1000, 1)])
def test_a_block_with_names_that_no_call_gives_is_not_read(first: int, count: int) -> None:
    """Fewer names than messages would give each the name of another one."""
    with pytest.raises(AssertionError):
        listed({"prefix": "n-", "first": first}, count)

"""Lines come in batches, as soon as they are there, whatever they come from."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import anyio
import pytest

from gateway.commands.exits import Failure
from gateway.commands.lines import LINE_BYTES_MAX, LINES_PER_BATCH, Line, Lines

pytestmark = pytest.mark.anyio


async def all_of(source: BinaryIO) -> list[list[Line]]:
    return [batch async for batch in Lines(source)]


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, int]]:
    reading, writing = os.pipe()
    with open(reading, "rb") as source:
        yield source, writing


async def test_lines_keep_their_numbers_and_blank_ones_are_left_out() -> None:
    batches = await all_of(io.BytesIO(b"one\n\ntwo\r\n \nlast"))
    assert batches == [[(1, b"one"), (3, b"two")], [(5, b"last")]]


async def test_batch_has_at_most_a_thousand_lines() -> None:
    batches = await all_of(io.BytesIO(b"x\n" * 2_500))
    assert [len(batch) for batch in batches] == [LINES_PER_BATCH, LINES_PER_BATCH, 500]
    assert batches[-1][-1].number == 2_500


async def test_file_tells_how_much_there_is_and_how_much_was_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\ntwo\n")
    with (tmp_path / "file").open("rb") as source:
        lines = Lines(source)
        assert lines.bytes_total == 8
        assert [line.text async for batch in lines for line in batch] == [b"one", b"two"]
        assert lines.bytes_read == 8


async def test_line_of_a_slow_pipe_comes_before_the_next_one_is_written(pipe: tuple[BinaryIO, int]) -> None:
    source, writing = pipe
    batches = aiter(Lines(source))
    with anyio.fail_after(5):
        os.write(writing, b"one\nhal")
        assert await anext(batches) == [(1, b"one")]
        os.write(writing, b"f\n")
        assert await anext(batches) == [(2, b"half")]
        os.close(writing)
        assert [batch async for batch in batches] == []


async def test_waiting_for_a_pipe_can_be_cancelled(pipe: tuple[BinaryIO, int]) -> None:
    source, writing = pipe
    with anyio.move_on_after(0.05) as scope:
        await all_of(source)
    assert scope.cancelled_caught
    os.close(writing)


async def test_line_that_is_no_message_ends_the_reading() -> None:
    with pytest.raises(Failure, match="line 2 is longer than"):
        await all_of(io.BytesIO(b"one\n" + b"x" * (LINE_BYTES_MAX + 1)))

"""What is taken out of a socket's bytes, and what the library gets: together they are what was sent."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from push.session.frame_splitter import FrameSplitter

MASK = b"\x0a\x1b\x2c\x3d"
MAX = 70_000
TEXT, BINARY, CONT = Opcode.TEXT, Opcode.BINARY, Opcode.CONT


def sent(opcode: Opcode, data: bytes, *, fin: bool = True, mask: bool = True, length: int | None = None) -> bytes:
    """A frame as a client writes it; `length`: what it says of itself, if not the truth."""
    size = len(data) if length is None else length
    first, masked = opcode | fin << 7, mask << 7
    if size < 126:
        head = struct.pack("!BB", first, masked | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, masked | 126, size)
    else:
        head = struct.pack("!BBQ", first, masked | 127, size)
    body = bytes(one ^ MASK[n % 4] for n, one in enumerate(data)) if mask else data
    return head + (MASK if mask else b"") + body


def taken(*reads: bytes) -> tuple[list[bytes], bytes]:
    """The messages, and all that the library got."""
    splitter = FrameSplitter(MAX)
    pieces = [piece for read in reads for piece in splitter.feed(read)]
    return [data for is_message, data in pieces if is_message], b"".join(
        d for is_message, d in pieces if not is_message
    )


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, MAX])
def test_a_whole_message_of_any_size_is_taken_out(size: int) -> None:
    assert taken(sent(BINARY, b"x" * size)) == ([b"x" * size], b"")
    assert taken(sent(TEXT, b"x" * size)) == ([b"x" * size], b"")


def test_many_messages_of_one_read_come_in_their_order() -> None:
    assert taken(sent(TEXT, b"1") + sent(BINARY, b"2") + sent(TEXT, b"3")) == ([b"1", b"2", b"3"], b"")


@pytest.mark.parametrize(
    "frame",
    [
        sent(Opcode.PING, b"p"),
        sent(Opcode.PONG, b""),
        sent(Opcode.CLOSE, b"\x03\xe8"),
        sent(TEXT, b"not masked", mask=False),
        sent(TEXT, b"a part", fin=False),
        sent(CONT, b"of nothing"),
        sent(BINARY, b"", length=MAX + 1),
        bytes([TEXT | 0xC0]) + sent(TEXT, b"rsv1")[1:],
        b"\x83" + sent(TEXT, b"unknown opcode")[1:],
    ],
    ids=["ping", "pong", "close", "unmasked", "fragment", "continuation", "large", "rsv", "opcode"],
)
def test_everything_else_is_the_librarys(frame: bytes) -> None:
    assert taken(frame) == ([], frame)


def test_what_stands_between_messages_reaches_the_library_in_its_place() -> None:
    splitter, ping = FrameSplitter(MAX), sent(Opcode.PING, b"p")
    assert list(splitter.feed(sent(TEXT, b"1") + ping + sent(TEXT, b"2"))) == [
        (True, b"1"),
        (False, ping),
        (True, b"2"),
    ]


def test_while_a_message_comes_in_pieces_the_library_sees_every_frame() -> None:
    pieces = [sent(TEXT, b"a", fin=False), sent(Opcode.PING, b""), sent(CONT, b"b", fin=False), sent(CONT, b"c")]
    assert taken(*pieces, sent(TEXT, b"next")) == ([b"next"], b"".join(pieces))
    # A message in the middle of another one is an error, which the library must see to tell.
    wrong = [sent(TEXT, b"a", fin=False), sent(TEXT, b"b")]
    assert taken(*wrong) == ([], b"".join(wrong))


def test_after_a_close_frame_all_is_the_librarys() -> None:
    rest = sent(Opcode.CLOSE, b"") + sent(TEXT, b"late")
    assert taken(sent(TEXT, b"1") + rest) == ([b"1"], rest)
    assert taken(rest, sent(TEXT, b"later")) == ([], rest + sent(TEXT, b"later"))


def test_a_message_that_a_read_cuts_is_the_librarys_and_the_next_is_not() -> None:
    frame = sent(BINARY, b"x" * 300)
    for cut in range(4, len(frame)):
        assert taken(frame[:cut], frame[cut:] + sent(TEXT, b"y")) == ([b"y"], frame), cut


def test_a_head_that_a_read_cuts_waits_for_its_length() -> None:
    for frame in (sent(TEXT, b"x"), sent(TEXT, b"x" * 300), sent(TEXT, b"x" * 66_000)):
        data = frame[frame.index(MASK) + 4 :]
        whole = bytes(one ^ MASK[n % 4] for n, one in enumerate(data))
        assert taken(frame[:1], frame[1:]) == ([whole], b"")


_opcodes = st.sampled_from([TEXT, BINARY, CONT, Opcode.PING, Opcode.PONG])
_frames = st.lists(
    st.builds(sent, _opcodes, st.binary(max_size=200), fin=st.booleans(), mask=st.sampled_from([True, True, False])),
    max_size=12,
)


@given(_frames, st.lists(st.integers(min_value=1, max_value=90), max_size=40), st.binary(max_size=20))
def test_however_it_is_cut_nothing_is_lost_or_made_up(frames: list[bytes], sizes: list[int], tail: bytes) -> None:
    """Put back as frames, what came out is what went in."""
    stream, reads, at = b"".join(frames) + tail, [], 0
    for size in sizes:
        reads.append(stream[at : at + size])
        at += size
    splitter = FrameSplitter(MAX)
    out, sizes_out = b"", []
    for read in [*reads, stream[at:]]:
        for is_message, data in splitter.feed(read):
            if is_message:
                place = len(out)
                back = Frame(Opcode(stream[place] & 0x0F), data).serialize(mask=False)
                assert stream[place] == back[0]
                head = len(back) - len(data) + 4
                mask = stream[place + head - 4 : place + head]
                body = stream[place + head : place + head + len(data)]
                assert data == bytes(one ^ mask[n % 4] for n, one in enumerate(body))
                out += stream[place : place + head + len(data)]
            else:
                out += data
            sizes_out.append(len(data))
    assert stream.startswith(out) and len(stream) - len(out) < 10, "only the beginning of a head may wait"

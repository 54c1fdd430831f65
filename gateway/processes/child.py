"""A child process's connection to its parent: the role it was given, and how each notices the other's end.

The connection is a pair of sockets that no other process has. When the parent dies, however it dies, its end closes and
the children end; to end a child the parent closes its half. So no child outlives the server, and a signal that a
service manager sends to all processes at once does no harm.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.config.settings import Settings
from gateway.processes.limits import SPEC_BYTES_MAX


class Spec(msgspec.Struct, frozen=True):
    """What a child is to be."""

    number: int
    gateways: int
    settings: Settings
    admin_fd: int = -1
    """The listening socket of local administration, shared by all gateways."""


class Said(msgspec.Struct, frozen=True):
    """A child's message to its parent: it is ready, or why it cannot start."""

    failed: str = ""
    made_master_key: bool = False
    """This start generated the master key."""


_encode = msgspec.json.Encoder().encode
_spec = msgspec.json.Decoder(Spec).decode
said = msgspec.json.Decoder(Said).decode


def packed(spec: Spec) -> bytes:
    return _encode(spec) + b"\n"


class Parent:
    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def ready(self, **facts: Any) -> None:
        self._say(Said(**facts))

    def failed(self, detail: str) -> None:
        self._say(Said(failed=detail))

    def _say(self, word: Said) -> None:
        try:
            self._line.sendall(_encode(word) + b"\n")
        except OSError:
            pass  # the parent is gone, which `when_gone` reports

    def when_gone(self, call: Callable[[], None]) -> None:
        """Calls `call` once, when the parent is gone or wants this process to end."""
        loop = asyncio.get_running_loop()
        self._line.setblocking(False)

        def readable() -> None:
            try:
                if self._line.recv(1):
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            loop.remove_reader(self._line)
            call()

        loop.add_reader(self._line, readable)


def hired() -> tuple[Parent, Spec]:
    """The parent, and the role it sends, from standard input, which becomes /dev/null. Raises `EOFError`."""
    line = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    text = bytearray()
    while not text.endswith(b"\n"):
        if not (some := line.recv(65536)) or len(text) > SPEC_BYTES_MAX:
            raise EOFError("the process was started without a role")
        text += some
    return Parent(line), _spec(bytes(text))

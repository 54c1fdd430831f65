"""Tells systemd how a role is: ready, alive, about to end. Each word is one datagram to the socket of NOTIFY_SOCKET
(sd_notify(3)); where nothing names one, nobody listens and nothing is said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Final

import structlog

log = structlog.get_logger("pushq.service")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""What ends a role in order."""

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHED: Final = "WATCHDOG_PID"
_BEATS_A_WATCH: Final = 3
"""So many signs of life in the time after which systemd would end the process."""


def tell_ready() -> None:
    """READY=1, and from now on WATCHDOG=1 where the unit wants it, for as long as the running loop gets on."""
    if _say(b"READY=1") and (seconds := _watchdog_seconds()):
        _beat(asyncio.get_running_loop(), seconds / _BEATS_A_WATCH)


def tell_stopping() -> None:
    _say(b"STOPPING=1")


def _beat(loop: asyncio.AbstractEventLoop, every_s: float) -> None:
    _say(b"WATCHDOG=1")
    loop.call_later(every_s, _beat, loop, every_s)


def _say(word: bytes) -> bool:
    """Whether somebody listens. It never waits: a service manager that does not read must not hold a server up."""
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    # An address with an @ is in Linux's abstract namespace, whose names begin with a zero byte.
    target = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.setblocking(False)
            line.sendto(word, target)
    except OSError as error:
        log.warning("the service manager is not told", word=word.decode(), error=str(error))
    return True


def _watchdog_seconds() -> float:
    """0 where nobody watches this process."""
    text, watched = os.environ.get(_WATCHDOG, ""), os.environ.get(_WATCHED, "")
    if not text.isdigit() or watched not in ("", str(os.getpid())):
        return 0.0
    return int(text) / 1_000_000

"""Notifies systemd that a role is ready, alive, or stopping. Each notification is one datagram to the socket of
NOTIFY_SOCKET (sd_notify(3)); without that variable nothing is sent.
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
"""Signals that end a role gracefully."""

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHED: Final = "WATCHDOG_PID"
_BEATS_A_WATCH: Final = 3
"""Watchdog notifications per interval after which systemd would kill the process."""


def tell_ready() -> None:
    """Sends READY=1 and, if the unit has a watchdog, WATCHDOG=1 periodically, for as long as the event loop runs."""
    if _say(b"READY=1") and (seconds := _watchdog_seconds()):
        _beat(asyncio.get_running_loop(), seconds / _BEATS_A_WATCH)


def tell_stopping() -> None:
    _say(b"STOPPING=1")


def _beat(loop: asyncio.AbstractEventLoop, every_s: float) -> None:
    _say(b"WATCHDOG=1")
    loop.call_later(every_s, _beat, loop, every_s)


def _say(word: bytes) -> bool:
    """Sends a notification. False without a NOTIFY_SOCKET. Never blocks: a service manager that does not read must not
    stall a server."""
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
        log.warning("cannot notify the service manager", word=word.decode(), error=str(error))
    return True


def _watchdog_seconds() -> float:
    """The watchdog interval in seconds; 0 if this process is not watched."""
    text, watched = os.environ.get(_WATCHDOG, ""), os.environ.get(_WATCHED, "")
    if not text.isdigit() or watched not in ("", str(os.getpid())):
        return 0.0
    return int(text) / 1_000_000

"""What happens to a session, as sentences on stderr: lost connections, gaps in a stream, leases that ended early."""

from __future__ import annotations

import logging

from gateway.commands.output import tell
from push.client import Connected, Disconnected, Gap, Lost, Reset, SessionEvent, Stopped, Unreadable


class Teller:
    """Silent until the first connection stands: why none came about is the command's last word."""

    def __init__(self) -> None:
        # The client's own log lines say the same for programs.
        logging.getLogger("pushq.client").addHandler(logging.NullHandler())
        self._was_connected = False

    def __call__(self, event: SessionEvent) -> None:
        match event:
            case Connected():
                if self._was_connected:
                    tell("connected again" + (", leases go on" if event.resumed else ""))
                self._was_connected = True
            case Disconnected() if self._was_connected:
                tell(f"connection lost ({event.reason}), again in {event.retry_in_s:.1f} s")
            case Gap():
                tell(f"gap: the stream no longer has what lay between {event.start} and {event.end}")
            case Reset():
                tell("the stream could not go on from where it was; what lies between is unknown")
            case Lost():
                tell(f"lease lost, it will come again: {', '.join(event.ids)}")
            case Unreadable():
                tell(f"message {event.id} was not shown: {event.reason}")
            case Disconnected() | Stopped():
                pass

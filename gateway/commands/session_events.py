"""Prints events of a session on stderr: lost connections, gaps in a stream, leases that ended early."""

from __future__ import annotations

from gateway.commands.output import tell
from push.client import Connected, Disconnected, Gap, Lost, Postponed, Problem, Reset, SessionEvent, Stopped, Unreadable


class Teller:
    """Silent until the first connection is open: why none could be opened is the command's error message.

    Only a server that asks to come back later is reported before, as it explains why the command waits.
    """

    def __init__(self) -> None:
        self._was_connected = False

    def __call__(self, event: SessionEvent) -> None:
        match event:
            case Connected():
                if self._was_connected:
                    tell("reconnected" + (", leases continue" if event.resumed else ""))
                self._was_connected = True
            case Disconnected() if self._was_connected:
                tell(f"connection lost ({event.reason}), reconnecting in {event.retry_in_s:.1f} s")
            case Disconnected() if event.problem is not None:
                tell(f"{said(event.problem)}; retrying in {event.retry_in_s:.1f} s")
            case Postponed():
                tell(f'"{event.queue}": {said(event.problem)}; retrying in {event.retry_in_s:.1f} s')
            case Gap():
                tell(f"gap: the stream no longer has the messages between {event.start} and {event.end}")
            case Reset():
                tell("the stream could not resume where it left off; messages may have been missed")
            case Lost():
                tell(f"lease lost, will be redelivered: {', '.join(event.ids)}")
            case Unreadable():
                tell(f"message {event.id} cannot be shown: {event.reason}")
            case Disconnected() | Stopped():
                pass


def said(problem: Problem) -> str:
    """A problem as part of a sentence."""
    return f"server error {problem.code}: {problem.detail or problem.title}"

"""Close codes for refused credentials, and `refresh`: a session goes on with a newer token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.model import Forbidden, PushqError, QueueNotFound, TokenExpired
from push.ports import Principal
from push.protocol import Refresh
from push.session.close_codes import Close

if TYPE_CHECKING:
    from push.session.session import Session, Subscription


def close_for(error: PushqError) -> Close:
    """The close code for a refused credential; it tells the client to come back with a newer token, later, or not at
    all."""
    if isinstance(error, TokenExpired):
        return Close.TOKEN_EXPIRED
    if error.code == "unavailable":
        return Close.TIMED_OUT
    return {"unauthenticated": Close.UNAUTHENTICATED, "forbidden": Close.FORBIDDEN}.get(
        error.code, Close.PROTOCOL_ERROR
    )


def refresh(session: Session, frame: Refresh) -> None:
    """Goes on with a newer token of the same caller. Another caller's token, or an invalid one, ends the session.

    While the token cannot be checked the session stays as it is, and the client may try again.
    """
    known = session.principal
    assert known is not None
    try:
        principal = session.hub.desk.identify(frame.token)
        if not session.hub.desk.is_same_caller(known, principal):
            raise Forbidden("the new token belongs to another caller; open a separate connection for it")
    except PushqError as error:
        if error.code == "unavailable":
            raise
        session.error(None, error)
        session.close(close_for(error), error.detail)
        return
    ended = _not_allowed(session, principal)
    session.principal = principal
    session.ok(frame.id)
    for sub, why in ended:
        session.end(sub, why)


def _not_allowed(session: Session, principal: Principal) -> list[tuple[Subscription, PushqError]]:
    """The subscriptions that the newer token no longer allows, with the error of each."""
    ended: list[tuple[Subscription, PushqError]] = []
    for sub in session.subs.values():
        try:
            session.hub.desk.queue(principal, sub.queue.name, "consume")
        except (Forbidden, QueueNotFound) as error:
            ended.append((sub, error))
    return ended

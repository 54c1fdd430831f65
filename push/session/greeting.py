"""The first frame of a socket: who connects, whether that may be now, and which session goes on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from backend_store.model import PushqError, Unauthenticated
from push.delivery.lookup_retry import LookingUp, outcome
from push.limits import CREDIT_MAX, SUBSCRIPTIONS_PER_SESSION_MAX
from push.operations.checks import check_id
from push.ports import Principal
from push.protocol import FRAME_BYTES_MAX, PING_MS, REQUESTS_IN_PROGRESS_MAX, ClientFrame, Connect, RequestId
from push.session.close_codes import Close
from push.session.credentials import close_for
from throttling.census import Who

if TYPE_CHECKING:
    from push.session.session import Session

CONNECT_FIRST = "the first frame must be `connect`"


def first(session: Session, frame: ClientFrame) -> None:
    """Takes in what comes before a session is open: `connect`, and nothing else."""
    if not isinstance(frame, Connect):
        session.turn_away(None, Unauthenticated(CONNECT_FIRST), Close.UNAUTHENTICATED)
        return
    try:
        check_id(frame.id)
        session.principal = _identify(session, frame)
    except LookingUp as looking:
        refuse = partial(_refused, session, frame)
        session.gate.enter(outcome(looking.flight), partial(first, session, frame), refuse)
        return
    except PushqError as error:
        _refused(session, frame, error)
        return
    verdict = session.hub.throttle.operation(_account(session), "connect", None)
    session.gate.enter(verdict, partial(_enter, session, frame), partial(_over, session, frame.id))


def _identify(session: Session, frame: Connect) -> Principal:
    desk = session.hub.desk
    if frame.token is not None:
        return desk.identify(frame.token)
    if frame.ticket is not None:
        return desk.redeem(frame.ticket)
    if session.principal is None:
        raise Unauthenticated("`connect` needs a `token` or a `ticket`, or the upgrade request an Authorization header")
    return session.principal


def _account(session: Session) -> Who:
    assert session.principal is not None
    return Who(session.principal.tenant, session.principal.id, session.remote)


def _refused(session: Session, frame: Connect, error: PushqError) -> None:
    session.turn_away(frame.id, error, close_for(error))


def _over(session: Session, request_id: RequestId, error: PushqError) -> None:
    session.turn_away(request_id, error, Close.RATE_LIMITED)


def _enter(session: Session, frame: Connect) -> None:
    """The address is counted already, since the socket opened."""
    who = _account(session)
    try:
        session.hub.throttle.enter("connections", who._replace(address=""))
    except PushqError as error:
        _over(session, frame.id, error)
        return
    session.who = who
    fetching = None
    if frame.resume is not None and session.principal is not None:
        fetching = session.hub.fetching(frame.resume.session, session.principal)
    session.gate.enter(fetching, partial(_open, session, frame), partial(_refused, session, frame))


def _open(session: Session, frame: Connect) -> None:
    session.opened = True
    resumed = session.hub.opened(session, frame.resume.session if frame.resume is not None else None)
    connected = {
        "type": "connected",
        "session": session.id,
        "resumed": resumed,
        "ping_ms": PING_MS,
        "resume_ms": session.hub.resume_ms,
        "limits": {
            "frame_bytes_max": FRAME_BYTES_MAX,
            "messages_per_publish_max": 1000,
            "requests_in_progress_max": REQUESTS_IN_PROGRESS_MAX,
            "in_flight_per_subscription_max": CREDIT_MAX,
            "subscriptions_max": SUBSCRIPTIONS_PER_SESSION_MAX,
        },
    }
    session.send_single({**connected, **({"id": frame.id} if frame.id is not None else {})})

"""All push connections of a gateway process: opens, resumes, pings, drains and closes sessions, streams and long-polls,
and flushes once a turn the sessions that have something to write."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from websockets.frames import Opcode

from backend_store.client import Gap, KeptSession, Lease, Queue, Store
from backend_store.model import ClusterAway, PushqError, QueueNotFound, Unauthenticated
from push.connections import Connections
from push.core.resume import Parked, ParkingLot
from push.delivery.fanout import Fanout, Framer, websocket_framer
from push.delivery.feeder import Feeder, feeder_of
from push.delivery.readers import Readers
from push.delivery.replay_pacer import Pacer
from push.delivery.wait_times import WaitTimes
from push.encoding.deliveries import encode
from push.encoding.sse import sse_framer
from push.intake import Intake
from push.limits import (
    BEAT_MS_MAX,
    DRAIN_SECONDS_DEFAULT,
    KEY_CHECK_SECONDS,
    PARKED_SESSIONS_MAX,
    PUBLISH_MS_DEFAULT,
    SESSION_CHARS_MAX,
    SESSION_FETCH_SECONDS_MAX,
    SLOWEST_BLOCKED_SECONDS_MIN,
    SLOWEST_CLOSED_FRACTION,
    UNREAD_SECONDS_DEFAULT,
    WRITE_BLOCKED_SECONDS_MAX,
)
from push.operations.checks import checked_timeout
from push.ports import Desk, Elsewhere, Meter, NoThrottle, Principal, Throttle, Unmetered
from push.protocol import CONNECT_SECONDS_MAX, PING_MS, PONG_MS_MAX
from push.session.close_codes import Close
from push.session.drain import DrainWaves
from push.session.session import Session
from push.session.subscriptions import Away, StreamSubscription, WorkSubscription

if TYPE_CHECKING:
    from push.spans import Spans

log = structlog.get_logger("pushq.hub")

HOUSEKEEPING_SECONDS = 1.0
CLOSE_OTHER = 0
_TEXT, _BINARY = 0x80 | Opcode.TEXT, 0x80 | Opcode.BINARY
"""How a frame begins that is a whole message."""
_CODES_COUNTED = frozenset({1000, 1001, 1005, 1006, 1009, 1011, *Close})
SILENT_MS_MAX = PING_MS + PONG_MS_MAX


class Stream(Protocol):
    """An SSE stream: not resumable by id, but drained and counted like a session."""

    @property
    def queue(self) -> Queue: ...

    def bye(self, retry_ms: int) -> None: ...
    def queue_gone(self, queue: Queue, error: PushqError) -> None: ...
    def tell_gap(self, number: int, gap: Gap) -> None: ...
    def check(self) -> None: ...


class Hub:
    """Owns the sessions, streams and waiting long-polls of a process. The gateway makes, drains and closes it."""

    def __init__(
        self,
        store: Store,
        desk: Desk,
        *,
        clock_ms: Callable[[], int],
        resume_ms: int = 5000,
        connections_max: int = 20_000,
        meter: Meter | None = None,
        throttle: Throttle | None = None,
        intake: Intake | None = None,
        drain_window_s: int = DRAIN_SECONDS_DEFAULT,
        unread_s: int = UNREAD_SECONDS_DEFAULT,
        spans: Spans | None = None,
        elsewhere: Elsewhere | None = None,
    ):
        """`elsewhere`: the sessions of other gateways; None if there are no others."""
        self.store = store
        self.desk = desk
        self.meter: Meter = meter or Unmetered()
        self.spans = spans
        self.clock_ms = clock_ms
        self._slept_ms = 0
        """Time without a beat, as this process was suspended: a suspended process cannot judge which client was silent.
        """
        self.now_ms = clock_ms()
        """By `awake_ms`, as of the last beat."""
        self.publish_ms = PUBLISH_MS_DEFAULT
        """How long a publish without a `timeout_ms` waits."""
        self.resume_ms = resume_ms
        self.unread_ms = unread_s * 1000
        """A session that was sent messages gets no more once its client was silent for this long; 0: never withheld."""
        self.withheld = 0
        self.connections_max = connections_max
        self.throttle: Throttle = NoThrottle() if throttle is None else throttle
        self.intake = Intake() if intake is None else intake
        self.farewells = DrainWaves(window_s=drain_window_s, accepts_per_s=self.intake.accepts_per_s)
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self.sessions: dict[str, Session] = {}
        self.waiting: set[Session] = set()
        """Sockets that have not sent `connect` yet."""
        self.streams: set[Stream] = set()
        self.readers: Readers[Session] = Readers()
        """Sessions by the queue they subscribe to."""
        self.stream_readers: Readers[Stream] = Readers()
        self.open = Connections()
        self.polls: dict[asyncio.Future[None], Queue] = {}
        """Waiting long-polls, to be ended when their queue is deleted or the process shuts down."""
        self.parked: ParkingLot[list[Lease]] = ParkingLot(PARKED_SESSIONS_MAX)
        self._elsewhere = elsewhere
        self._bringing: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By session and principal: those that are on their way here."""
        self.delivered = 0
        self.unshown = 0
        """Stream messages that cannot be shown to any reader, counted once per reader that was told."""
        self.waits: dict[str, WaitTimes] = {transport: WaitTimes() for transport in ("ws", "sse", "poll")}
        """By transport."""
        self.closes: Counter[int] = Counter()
        self._resuming: dict[Session, Parked[list[Lease]]] = {}
        self._dirty: list[Session] = []
        self._flush_scheduled = False
        self._pacer = Pacer(self.loop, is_held=lambda: self.intake.holds_replays)
        self._framers: dict[str, Framer] = {
            "json": websocket_framer("json", text_frame),
            "msgpack": websocket_framer("msgpack", binary_frame),
            "sse": sse_framer,
        }
        ws = self.waits["ws"]
        self._waits_of_frames = {"json": ws, "msgpack": ws, "sse": self.waits["sse"]}
        self._restore()
        self._housekeeper = self.loop.create_task(self._keep_house(), name="hub")

    # ------------------------------------------------------------------------------------------------- connections

    @property
    def connections(self) -> int:
        return len(self.sessions) + len(self.waiting) + len(self.streams) + len(self.polls)

    def awake_ms(self) -> int:
        """The steady clock without the time in which this process was suspended; session timeouts use it."""
        return self.clock_ms() - self._slept_ms

    def until_ms(self, until: float) -> int:
        """Converts a time of the loop's clock to the node's steady clock, in ms, as a publish deadline."""
        return self.clock_ms() + round(1000 * (until - self.loop.time()))

    def waits_until(self, timeout_ms: int | None, came: float | None = None) -> float:
        """The deadline of a publish that `came` then (default: now), by the loop's clock. Raises `InvalidRequest` for a
        `timeout_ms` out of range."""
        wait_ms = self.publish_ms if timeout_ms is None else checked_timeout(timeout_ms)
        return (self.loop.time() if came is None else came) + wait_ms / 1000

    @property
    def full(self) -> bool:
        return self.connections >= self.connections_max

    def refusal(self) -> PushqError | None:
        """Why no socket or stream can come in now, whichever client asks. `Intake.refusal_by_pace` checks the rate of
        the client itself."""
        if self.draining:
            return PushqError("the server is shutting down", code="draining")
        return self.intake.refusal_of_socket(self.connections, self.connections_max)

    def accepted(self, session: Session) -> None:
        self.waiting.add(session)

    def stream_opened(self, stream: Stream) -> None:
        self.streams.add(stream)
        self.stream_readers.enter(stream, stream.queue)

    def stream_closed(self, stream: Stream) -> None:
        self.streams.discard(stream)
        self.stream_readers.leave(stream, stream.queue)

    def fetching(self, resume: str, principal: Principal) -> Coroutine[Any, Any, None] | None:
        """What brings a session here that may be at another gateway; None if it is here, or there are no others."""
        if self._elsewhere is None or resume in self.sessions or resume in self.parked:
            return None
        if len(resume) > SESSION_CHARS_MAX:
            return None  # no gateway gave it out
        return self._fetch(self._elsewhere, resume, principal)

    async def _fetch(self, elsewhere: Elsewhere, resume: str, principal: Principal) -> None:
        """Returns after `SESSION_FETCH_SECONDS_MAX` at the latest. A session that comes later is parked, too, so its
        messages return."""
        whose = resume, principal.id
        if (bringing := self._bringing.get(whose)) is None:
            bringing = self.loop.create_task(self._bring(elsewhere, resume, principal), name="session from elsewhere")
            self._bringing[whose] = bringing
            bringing.add_done_callback(lambda _: self._bringing.pop(whose))
        await asyncio.wait({bringing}, timeout=SESSION_FETCH_SECONDS_MAX)

    async def _bring(self, elsewhere: Elsewhere, resume: str, principal: Principal) -> None:
        try:
            parked = await elsewhere.fetch(resume, principal)
        except PushqError as error:
            log.info("a session was not fetched", session=resume[:6], reason=error.detail)
        except Exception:
            log.exception("a session was not fetched", session=resume[:6])
        else:
            if parked is not None:
                parked.until_ms = self.awake_ms() + self.resume_ms
                self._park(parked)

    def give_away(self, session_id: str, principal_id: str) -> Parked[list[Lease]] | None:
        """Ends a session that another gateway is to resume; None if it is not here, or belongs to another principal.
        The other gateway takes its leases over; those that it does not take return when their time is over."""
        older = self.sessions.get(session_id)
        if older is not None and older.principal is not None and older.principal.id == principal_id:
            older.replaced()
        parked = self.parked.take(session_id, principal_id)
        if parked is not None:
            self.loop.call_later(self.resume_ms / 1000, self._give_back, parked)
        return parked

    def opened(self, session: Session, resume: str | None) -> bool:
        """Registers a connected session and gives it its id. True if it resumes an earlier session."""
        assert session.principal is not None
        self.waiting.discard(session)
        self.open.add("ws", session)
        if resume is not None:
            self._take_over(session, resume)
            parked = self.parked.take(resume, session.principal.id)
            if parked is not None:
                session.id = parked.session
                self.sessions[session.id] = session
                # The leases it held go to its subscriptions as they are made again, or back to the queue when the time
                # is over.
                self._resuming[session] = parked
                self.loop.call_later(self.resume_ms / 1000, self._resume_over, session)
                return True
        session.id = secrets.token_urlsafe(18) + ("" if self._elsewhere is None else self._elsewhere.suffix)
        self.sessions[session.id] = session
        return False

    def _take_over(self, session: Session, resume: str) -> None:
        """Closes the session's older socket: a client may reconnect before we noticed that its socket is dead."""
        assert session.principal is not None
        older = self.sessions.get(resume)
        if older is None or older.principal is None or older.principal.id != session.principal.id:
            return
        older.replaced()

    def hand_over(self, session: Session, sub: WorkSubscription) -> list[str]:
        """Gives a new subscription the leases that its session held on the queue before it was cut. Returns the
        receipts of the leases that ended meanwhile, to be sent to the client."""
        parked = self._resuming.get(session)
        if parked is None:
            return []
        place = (sub.queue.tenant, sub.queue.place)
        if leases := parked.held.pop(place, None):
            sub.adopt(leases)
            if sub.queue.mode == "offsets":
                sub.doubt(leases, within_ms=self.resume_ms)
        return parked.lost.pop(place, [])

    def _resume_over(self, session: Session) -> None:
        parked = self._resuming.pop(session, None)
        if parked is not None:
            self._give_back(parked)

    def closed(self, session: Session, *, clean: bool) -> None:
        """Ends the subscriptions of a session whose socket is closed. Its leases return at once if `clean`; else they
        are parked with it until it resumes or `resume_ms` is over."""
        self.waiting.discard(session)
        self.open.remove(session)
        if self.sessions.get(session.id) is session:
            del self.sessions[session.id]
        principal = session.principal
        principal_id, tenant = ("", "") if principal is None else (principal.id, principal.tenant)
        until_ms = self.awake_ms() + self.resume_ms
        parked: Parked[list[Lease]] = Parked(session.id, principal_id, until_ms, tenant=tenant)
        if (resuming := self._resuming.pop(session, None)) is not None:
            parked.held.update(resuming.held)
            parked.lost.update(resuming.lost)
        for sub in session.subs.values():
            try:
                self._sub_over(session, sub, parked, clean=clean)
            except Exception:
                # A bug in one subscription must not keep the others' messages from returning.
                log.exception("a subscription failed when its session ended", session=session.id[:6])
        session.subs.clear()
        if session.principal is None or not session.id:
            return
        if clean:
            self._give_back(parked)
        else:
            self._park(parked)

    def _park(self, parked: Parked[list[Lease]]) -> None:
        if (evicted := self.parked.park(parked)) is not None:
            self._give_back(evicted)

    def _sub_over(
        self, session: Session, sub: WorkSubscription | StreamSubscription, parked: Parked[list[Lease]], *, clean: bool
    ) -> None:
        session.leave("subscriptions")
        self.readers.leave(session, sub.queue)
        if isinstance(sub, StreamSubscription):
            self.fanout(sub.queue).stop(sub)
            sub.queue.consumers -= 1
            return
        sub.stop()
        if not clean:
            sub.doubt_oldest()
            if sub.gaps_since == session.hearing.heard:
                sub.queue.put_back_gaps(sub.gaps)
        if leases := sub.held():
            place = (sub.queue.tenant, sub.queue.place)
            parked.held.setdefault(place, []).extend(leases)
            sub.outlet = Away(parked.lost.setdefault(place, []))

    def _give_back(self, parked: Parked[list[Lease]]) -> None:
        for (tenant, place), leases in parked.held.items():
            try:
                queue = self.store.here(tenant, place.partition("/")[0])
            except (ClusterAway, QueueNotFound):  # it was deleted, or another queue has its name
                continue
            for lease in leases:
                for part in list(lease.parts()):
                    queue.give_back_lease(part)

    # ------------------------------------------------------------------------------------------------------ queues

    def feeder(self, queue: Queue) -> Feeder:
        queue.on_gap(partial(self._tell_gap, queue))
        return feeder_of(queue, self.loop, self.intake)

    def _tell_gap(self, queue: Queue) -> None:
        """Tells all consumers of a group which messages the stream trimmed before the group read them; polls ask
        themselves."""
        sessions, streams = self.readers.of(queue), self.stream_readers.of(queue)
        for gap in queue.take_gaps() if sessions or streams else ():
            for session in sessions:
                for number in [sub.number for sub in session.subs.values() if sub.queue is queue]:
                    session.tell_gap(number, gap)
            for stream in streams:
                stream.tell_gap(0, gap)

    def fanout(self, queue: Queue) -> Fanout:
        found: Fanout | None = queue.extras.get("fanout")
        if found is None:
            found = Fanout(
                queue,
                self.loop,
                self._framers,
                self.count_delivered,
                self._pacer,
                self.spans,
                self._waits_of_frames,
                self._count_unshown,
            )
            queue.extras["fanout"] = found
        return found

    def count_close(self, code: int) -> None:
        """Counts a close by its code. Codes that a peer made up share one number, or peers could create metric
        series."""
        self.closes[code if code in _CODES_COUNTED else CLOSE_OTHER] += 1

    def count_delivered(self, messages: int) -> None:
        self.delivered += messages

    def _count_unshown(self, messages: int) -> None:
        self.unshown += messages

    def queue_deleted(self, queue: Queue) -> None:
        """Ends every subscription of a queue or a group that was deleted."""
        error = queue.gone
        for session in self.readers.of(queue):
            for sub in [s for s in session.subs.values() if s.queue is queue]:
                _tell(queue, session.end, sub, error)
        for stream in self.stream_readers.of(queue):
            _tell(queue, stream.queue_gone, queue, error)
        self._end_polls(queue)

    def _end_polls(self, queue: Queue | None) -> None:
        """Wakes waiting long-polls to answer now: all of them, or those of one queue."""
        for ready, polled in list(self.polls.items()):
            if (queue is None or polled is queue) and not ready.done():
                ready.set_result(None)

    # ------------------------------------------------------------------------------------------------------- turns

    def flush_soon(self, session: Session) -> None:
        self._dirty.append(session)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        dirty, self._dirty = self._dirty, []
        for session in dirty:
            try:
                session.flush()
            except Exception:
                # A bug in one session must not delay the others' answers.
                log.exception("a session failed during a write", session=session.id[:6])
                session.wire.close(1011, "internal error")

    # ------------------------------------------------------------------------------------------------ housekeeping

    async def _keep_house(self) -> None:
        beat = 0
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            beat += 1
            self._beat()
            try:
                self._tidy()
                if beat % KEY_CHECK_SECONDS == 0:
                    self._check_keys()
            except Exception:
                # Without the next beat no session would be pinged, and no cut session's leases would ever return.
                log.exception("housekeeping failed")

    def _beat(self) -> None:
        self._slept_ms += max(0, self.awake_ms() - self.now_ms - BEAT_MS_MAX)
        self.now_ms = self.awake_ms()

    def _tidy(self) -> None:
        for parked in self.parked.expired(self.now_ms):
            self._give_back(parked)
        self._check_waiting()
        self._check_alive()

    def _check_waiting(self) -> None:
        for session in list(self.waiting):
            if self.now_ms - session.heard_ms > CONNECT_SECONDS_MAX * 1000:
                session.error(None, Unauthenticated(f"no `connect` within {CONNECT_SECONDS_MAX:.0f} s"))
                session.close(Close.TIMED_OUT, "no connect frame in time")

    def _check_alive(self) -> None:
        """Pings each session about once in `PING_MS`, and closes those that stay silent or do not read."""
        now_ms = self.now_ms
        for session in list(self.sessions.values()):
            if self.unread_ms and session.listen(now_ms, self.unread_ms):
                self.withheld += 1
                log.info("slow consumer", session=session.id[:6], unread_s=self.unread_ms // 1000)
            silent_ms = now_ms - session.heard_ms
            if now_ms < session.ping_at_ms and session.wire.is_writable and silent_ms <= SILENT_MS_MAX:
                continue
            if session.wire.blocked_seconds() > WRITE_BLOCKED_SECONDS_MAX:
                session.close(Close.SLOW_CONSUMER, f"the client read nothing for {WRITE_BLOCKED_SECONDS_MAX:.0f} s")
            elif silent_ms > SILENT_MS_MAX:
                session.close(Close.TIMED_OUT, f"no data received for {SILENT_MS_MAX // 1000} s")
            elif now_ms >= session.ping_at_ms:
                session.ping_at_ms = self.next_ping_ms()
                session.ping()

    def next_ping_ms(self) -> int:
        """The time of a session's next ping, spread by a fifth: sockets that connected together are not pinged
        together."""
        return self.now_ms + random.randint(PING_MS * 4 // 5, PING_MS)

    def _check_keys(self) -> None:
        for session in list(self.sessions.values()):
            if session.principal is not None and not self.desk.still_valid(session.principal):
                session.error(None, Unauthenticated("the key was revoked or has expired"))
                session.close(Close.TOKEN_EXPIRED, "the key was revoked or has expired")
        for stream in list(self.streams):
            stream.check()
        self.open.end_polls_without_key(self.desk.still_valid)

    def close_slowest(self) -> int:
        """Closes, while memory is short, a few of the sessions that have not read for the longest. Returns how many."""
        blocked = [(s.wire.blocked_seconds(), s) for s in self.sessions.values() if not s.wire.is_writable]
        slow = [one for one in blocked if one[0] > SLOWEST_BLOCKED_SECONDS_MIN]
        slow.sort(key=lambda one: -one[0])
        slowest = slow[: math.ceil(len(self.sessions) * SLOWEST_CLOSED_FRACTION)]
        for _, session in slowest:
            session.close(Close.SLOW_CONSUMER, "memory is short and this connection does not read")
        return len(slowest)

    async def drain(self) -> None:
        """Sends `bye` to every client, in waves, with a jittered time to come back. Sessions and leases are kept."""
        self.draining = True
        sessions, streams = list(self.sessions.values()), list(self.streams)
        plan = self.farewells.plan(len(sessions) + len(streams))
        farewells = [partial(stream.bye, plan.stream_retry_ms()) for stream in streams]
        farewells += [partial(session.bye, plan.retry_ms()) for session in sessions]
        for wave in plan.waves(farewells):
            for say in wave:
                try:
                    say()
                except Exception:
                    # A bug in one must not keep the others from getting their `bye`.
                    log.exception("a goodbye could not be sent")
            await asyncio.sleep(plan.pause_s)
        self._end_polls(None)
        for session in list(self.sessions.values()):
            session.bye(plan.retry_ms())  # it sent `connect` during the waves
        for session in list(self.waiting):
            session.close(Close.DRAIN, "the server is shutting down")
        log.info("drained", sessions=len(sessions), streams=len(streams), window_ms=plan.window_ms)

    def _restore(self) -> None:
        """Parks the sessions that the last clean stop saved. They can resume for `resume_ms` plus the window over which
        that many clients come back."""
        sessions, leases = self.store.take_kept()
        for kept in sessions:
            held: dict[tuple[str, str], list[Lease]] = {}
            for place, tokens in kept.held.items():
                tenant, _, name = place.partition("/")
                held[tenant, name] = [leases[token] for token in tokens if token in leases]
            until_ms = self.now_ms + self.resume_ms + self.farewells.plan(len(sessions)).window_ms
            tenant = next((tenant for tenant, _ in held), "")
            self.parked.park(Parked(kept.session, kept.principal_id, until_ms, held, tenant=tenant))

    def kept_sessions(self) -> list[KeptSession]:
        """The sessions to be saved over a clean stop; called after `drain`."""
        out: list[KeptSession] = []
        for parked in self.parked.all():
            held = {f"{tenant}/{name}": [x.token for x in leases] for (tenant, name), leases in parked.held.items()}
            out.append(KeptSession(parked.session, parked.principal_id, held))
        return out

    async def close(self) -> None:
        self._housekeeper.cancel()
        await asyncio.gather(self._housekeeper, return_exceptions=True)

    def ping_frame(self, encoding: str) -> bytes:
        return _PINGS[encoding]


def _tell(queue: Queue, listener: Callable[..., None], *what: Any) -> None:
    """Calls a consumer's listener. A bug in one consumer must not leave the others waiting for a queue that is gone."""
    try:
        listener(*what)
    except Exception:
        log.exception("a consumer could not be told that its queue was deleted", queue=queue.name)


def text_frame(payload: bytes) -> bytes:
    return _whole_frame(_TEXT, payload)


def binary_frame(payload: bytes) -> bytes:
    return _whole_frame(_BINARY, payload)


def _whole_frame(first: int, payload: bytes) -> bytes:
    """A server's message in one frame (RFC 6455, section 5.2). The library takes more for it than some answers do."""
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 65536:
        return b"%c\x7e%b%b" % (first, size.to_bytes(2, "big"), payload)
    return b"%c\x7f%b%b" % (first, size.to_bytes(8, "big"), payload)


_PINGS = {
    "json": text_frame(encode({"type": "ping"}, "json")),
    "msgpack": binary_frame(encode({"type": "ping"}, "msgpack")),
}

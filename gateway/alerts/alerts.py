"""The alerts of a gateway: evaluates every rule after each sampling of the queues, stores state changes, sends them.

Of several gateways only the one that holds the duty evaluates rules; the others show its results. The API changes
rules, silences and receivers, one at a time. A state change is stored before receivers are notified; while nothing can
be stored they are notified nevertheless, as a full disk may be what the alert is about.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import msgspec
import structlog

from backend_store.client import Documents
from backend_store.model import Conflict, NotFound, PushqError, Unavailable
from backend_store.words import counted
from gateway.alerts.asked import AskedRules
from gateway.alerts.core.evaluate import Alert, moved, observe
from gateway.alerts.core.groups import Note, notes
from gateway.alerts.core.rules import KINDS, Rule
from gateway.alerts.core.silences import Silence, muting, state_of
from gateway.alerts.limits import (
    CLOCK_STEP_MS_MIN,
    HISTORY_MS_MAX,
    RECEIVERS_PER_TENANT_MAX,
    RULES_MAX,
    RULES_PER_TENANT_MAX,
    SILENCES_PER_TENANT_MAX,
    WEBHOOKS_PER_TENANT_WAITING_MAX,
)
from gateway.alerts.record import Record
from gateway.alerts.stored import RECEIVERS, RULES, SILENCES, Receiver, Transition, Wanted, gone, put
from gateway.alerts.teller import Heard, Teller
from gateway.alerts.turn import Turn
from gateway.alerts.values import Sources
from gateway.identity.authorization import compile_pattern
from gateway.series.book import Book, Watched

log = structlog.get_logger("pushq.alerts")

COUNT_MS: Final = 10_000
"""How often the requests of SLOs are counted. SLOs are about minutes, so this need not be done at each evaluation."""
MINUTE_MS: Final = 60_000
ID_BYTES: Final = 6
RULE_IDS: Final = "use a rule id from GET /v1/alert-rules"
RECEIVER_IDS: Final = "use a receiver id from GET /v1/alert-receivers"

Known = Rule | Receiver | Silence
Told = Callable[[Rule, Alert, Silence | None], None]


class Alerts:
    """Rules, silences, receivers and alerts of this process; made by `gateway.alerts.setup.watching`."""

    def __init__(
        self,
        documents: Documents,
        book: Book,
        sources: Sources,
        *,
        clock_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        """`steady_ms`: a clock that runs at the rate of `clock_ms` and is never set."""
        wanted = Wanted(documents)
        self.rules: dict[str, Rule] = wanted.rules
        self.silences: dict[str, Silence] = wanted.silences
        self._silences_of: dict[str, list[Silence]] = {}
        """By tenant; filled on demand and cleared when a silence changes."""
        self.receivers: dict[str, Receiver] = wanted.receivers
        self.record = Record(documents, self.rules, clock_ms())
        self.teller = Teller(documents)
        self.on_seen: list[Told] = []
        """Called for each transition found here or at another gateway; the silence is the one that mutes the alert."""
        self.on_told: list[Told] = []
        """Called for each transition of which this gateway sends receivers a message of its own, after
        `Record.write`."""
        self.on_grouped: list[Callable[[Note], None]] = []
        """Called for transitions that receivers get in one message."""
        self.on_duty: list[Callable[[], None]] = []
        """Called when this gateway gets the duty: at the start, or after another gateway fell silent."""
        self.on_lost: list[Callable[[], None]] = []
        """Called when another gateway has the duty, and goes on with webhooks that are still on their way here."""
        self.on_receiver_gone: list[Callable[[str], None]] = []
        """Called for receivers that were deleted at another gateway."""
        self.omitted = 0
        self.evaluations = 0
        self.asked = 0
        """How often a rule was evaluated over all its subjects."""
        self.fired = 0
        self._documents = documents
        self._taken_over = documents.changes_elsewhere(RULES, SILENCES, RECEIVERS)
        self._book = book
        self.sources = sources
        self._clock_ms = clock_ms
        self._steady_ms = steady_ms
        self._ahead_ms = clock_ms() - steady_ms()
        self._matches: dict[str, tuple[int, list[Watched]]] = {}
        self._asked = AskedRules(book)
        self._turn = Turn(has_limit=documents.are_far)
        self._counted_ms = 0
        self._kept_minute = 0
        self._heard = Heard.NOTHING_NEW
        """The last change of the duty that `evaluate` has not acted on yet."""

    @property
    def now_ms(self) -> int:
        return self._clock_ms()

    @property
    def open(self) -> dict[str, dict[str, Alert]]:
        return self.record.open

    @property
    def history(self) -> dict[str, deque[Transition]]:
        return self.record.history.of_tenant

    # ------------------------------------------------------------------------------------------- one evaluation

    async def evaluate(self, now_ms: int) -> None:
        """Evaluates every rule if this gateway has the duty; on return, changes are stored, if possible, and sent."""
        had = self.teller.duty
        heard, _ = await asyncio.gather(self.teller.ask(), self._report(now_ms))
        async with self._turn.look():
            is_lost = had is not None and self.teller.duty != had  # a newer holder may have left again
            if is_lost:
                self._lost()
            if heard is not Heard.NOTHING_NEW and self._heard is not Heard.TAKEN:
                self._heard = heard
            self._take_over()
            enabled = [rule for rule in self.rules.values() if rule.enabled]
            if set_by_ms := self._set_by_ms():
                self.record.open = {rule: moved(alerts, set_by_ms) for rule, alerts in self.open.items()}
            self.record.forget_resolved(now_ms)
            if self.teller.is_ours:
                await self._look(enabled, now_ms)
            else:
                if not self.teller.has_lapsed:  # another gateway has it, or none yet
                    self.record.forget_unwritten()
                    self._follow(anew=is_lost)
                await self._refresh(enabled, now_ms)
            self.evaluations += 1
        if self.teller.is_ours:
            await self.sources.forget_gone()

    async def _report(self, now_ms: int) -> None:
        enabled = [rule for rule in self.rules.values() if rule.enabled]
        self._count_requests(enabled, now_ms)
        await self.sources.report(enabled, now_ms)

    async def _look(self, enabled: list[Rule], now_ms: int) -> None:
        heard, self._heard = self._heard, Heard.NOTHING_NEW
        if heard is Heard.TAKEN:
            self._follow(anew=True)
            self.record.forget_strays({rule.id for rule in enabled})
        self.record.read_lines()
        if heard is not Heard.NOTHING_NEW or not (self.evaluations or self.teller.is_shared):
            for begin in self.on_duty:
                begin()
        self._keep_budgets(enabled, now_ms)
        await self._keep(await self._ask(enabled, now_ms), now_ms)

    def _set_by_ms(self) -> int:
        """Returns by how many ms the clock was set since the last call."""
        ahead_ms = self._clock_ms() - self._steady_ms()
        set_by_ms = ahead_ms - self._ahead_ms
        if abs(set_by_ms) < CLOCK_STEP_MS_MIN:
            return 0
        self._ahead_ms = ahead_ms
        log.warning("the clock was set", by_s=round(set_by_ms / 1000))
        return set_by_ms

    async def _ask(self, enabled: Iterable[Rule], now_ms: int) -> list[tuple[Rule, Alert]]:
        changed: list[tuple[Rule, Alert]] = []
        self.omitted = 0
        for rule in enabled:
            before = self.open.get(rule.id, {})
            if not before and self._asked.is_as_before(rule, now_ms):
                continue
            try:
                values = self.values(rule, now_ms)
            except Unavailable:  # the source has logged why; the rule's alerts stay as they were
                continue
            self._asked.note(rule, values, now_ms)
            self.asked += 1
            found = self.sources.with_unseen(rule, before, values)
            seen = observe(rule, before, found, now_ms, partial(self.record.history.last_about, rule))
            self.record.see(rule, seen.alerts)
            self.omitted += seen.omitted
            changed += [(rule, alert) for alert in seen.changed]
            await asyncio.sleep(0)
        return changed

    def _follow(self, *, anew: bool = False) -> None:
        """Takes over alerts that another gateway found, to show them here."""
        for alert in self.record.read(self.rules, anew=anew):
            rule = self.rules.get(alert.rule)
            if rule is not None:
                silence = self.muting(rule, alert.subject)[0]
                for see in self.on_seen:
                    see(rule, alert, silence)

    async def _refresh(self, enabled: Iterable[Rule], now_ms: int) -> None:
        """Updates the values of open alerts, which are not stored at each evaluation: each gateway shows its own."""
        for rule in enabled:
            if before := self.open.get(rule.id):
                try:
                    values = self.values(rule, now_ms)
                except Unavailable:
                    continue
                for subject, value in values:
                    if value is not None and (alert := before.get(subject)) is not None and alert.value != value:
                        before[subject] = msgspec.structs.replace(alert, value=value)
                await asyncio.sleep(0)

    def _take_over(self) -> None:
        """Takes over changes that other gateways made to rules, silences and receivers since the last evaluation."""
        at = self._documents.changes_elsewhere(RULES, SILENCES, RECEIVERS)
        if self._taken_over == at:
            return
        self._taken_over = at
        wanted = Wanted(self._documents)
        for rule_id, rule in self.rules.items():
            if wanted.rules.get(rule_id) != rule:
                self._asked.forget(rule_id)
                self._matches.pop(rule_id, None)
                self.sources.forget(rule_id)
        self.record.forget_rules(
            rule_id for rule_id in list(self.open) if rule_id not in wanted.rules or not wanted.rules[rule_id].enabled
        )
        gone = self.receivers.keys() - wanted.receivers.keys()
        self.rules, self.silences, self.receivers = wanted.rules, wanted.silences, wanted.receivers
        self._silences_of.clear()
        for receiver_id in gone:
            for forget in self.on_receiver_gone:
                forget(receiver_id)

    def of_tenant(self, tenant: str) -> Iterator[tuple[Rule, Alert]]:
        """The tenant's alerts that are pending or firing, or were resolved within the last hour."""
        for rule in self.rules.values():
            if rule.tenant == tenant:
                for alert in self.open.get(rule.id, {}).values():
                    yield rule, alert
        for alert in self.record.resolved.get(tenant, ()):
            if alert.rule in self.rules:
                yield self.rules[alert.rule], alert

    def values(self, rule: Rule, now_ms: int) -> list[tuple[str, float | None]]:
        """The current value of each of a rule's subjects; None where it is unknown. Raises `Unavailable`."""
        return list(self.sources.values(rule, self._queues(rule), now_ms))

    def _queues(self, rule: Rule) -> list[Watched]:
        if not KINDS[rule.kind].has_queues:
            return []
        version, found = self._matches.get(rule.id, (-1, []))
        if version != (now := self._book.happened_to(rule.tenant).version):
            pattern = compile_pattern(rule.queue)
            queues = self._book.queues_of(rule.tenant)
            found = [watched for watched in queues if pattern.fullmatch(watched.definition.name)]
            if rule.id in self.rules:
                self._matches[rule.id] = (now, found)
        return found

    def _count_requests(self, enabled: Iterable[Rule], now_ms: int) -> None:
        if 0 <= now_ms - self._counted_ms < COUNT_MS:
            return
        self._counted_ms = now_ms
        self._count(enabled)

    def _count(self, enabled: Iterable[Rule]) -> None:
        slos = [rule for rule in enabled if KINDS[rule.kind].is_slo]
        if slos:
            self.sources.count_requests(slos, {r.id: {q.definition.name for q in self._queues(r)} for r in slos})

    def _keep_budgets(self, enabled: Iterable[Rule], now_ms: int) -> None:
        """Queues the counts of SLOs for storing, once a minute."""
        slos = [rule for rule in enabled if KINDS[rule.kind].is_slo]
        if slos and now_ms // MINUTE_MS != self._kept_minute:
            self._kept_minute = now_ms // MINUTE_MS
            self.record.count(self.sources.budgets.changed(slos))

    async def _keep(self, changed: list[tuple[Rule, Alert]], now_ms: int) -> None:
        """Stores what changed, then notifies receivers. Pending alerts have no history."""
        told: list[tuple[Rule, Alert, Silence | None]] = []
        for rule, alert in changed:
            silence = self.muting(rule, alert.subject)[0]
            told.append((rule, alert, silence))
            if alert.state != "pending":
                self.fired += alert.state == "firing"
                self.record.note(rule, alert, now_ms, silence)
        heard = list(
            notes((rule, alert) for rule, alert, silence in told if silence is None and alert.state != "pending")
        )
        self._keep_notes(heard, now_ms)
        if not await self._write():
            return
        is_ours = self.teller.is_ours  # the write may take long; a new holder of the duty goes on with the webhooks
        groups = [note for note in heard if note.group is not None]
        together = {(note.rule.id, note.alert.state) for note in groups}
        for rule, alert, silence in told:
            if alert.state != "pending":
                self._log(rule, alert, silence)
            is_alone = silence is not None or (rule.id, alert.state) not in together
            for tell in (*self.on_seen, *(self.on_told if is_ours and is_alone else ())):
                tell(rule, alert, silence)
        for note in groups if is_ours else ():
            for tell_group in self.on_grouped:
                tell_group(note)

    def _keep_notes(self, heard: Iterable[Note], now_ms: int) -> None:
        telling: Counter[str] = Counter()
        for note in heard:
            for receiver in self.webhooks_of(note.rule):
                telling[note.rule.tenant] += 1
                if telling[note.rule.tenant] <= WEBHOOKS_PER_TENANT_WAITING_MAX:  # more are dropped
                    self.record.tell(note.rule, note.alert, receiver.id, now_ms, note.group)

    async def _write(self) -> bool:
        """Returns False if another gateway has the duty by now: then nothing found here is sent."""
        try:
            await self.record.write(self.teller.duty)
        except Conflict as error:
            log.warning("an alert found here was not sent", error=error.detail)
            self.teller.lost()
            self._lost()
            self._follow(anew=True)
            return False
        return True

    def _lost(self) -> None:
        """Stops webhooks: a later try from here would report a begin after the new holder reported the end."""
        self._heard = Heard.NOTHING_NEW
        for stop in self.on_lost:
            stop()

    async def note_told(self) -> None:
        """Stores which webhooks have arrived, so that the next process does not send them again."""
        async with self._turn.look():
            if self.teller.is_ours:
                await self._write()

    def webhooks_of(self, rule: Rule) -> list[Receiver]:
        found = [self.receivers.get(receiver_id) for receiver_id in rule.receivers]
        return [one for one in found if one is not None and one.tenant == rule.tenant and one.type == "webhook"]

    async def leave(self) -> None:
        """Stores what is left and gives the duty up, as this process ends: another gateway notifies from now on."""
        async with self._turn.look():
            if self.teller.is_ours:
                enabled = [rule for rule in self.rules.values() if rule.enabled]
                self._count(enabled)
                self._kept_minute = 0
                self._keep_budgets(enabled, self._clock_ms())
                await self._write()
            await self.teller.leave()

    def _log(self, rule: Rule, alert: Alert, silence: Silence | None) -> None:
        say = log.warning if alert.state == "firing" and silence is None else log.info
        say(
            f"alert {alert.state}",
            tenant=rule.tenant,
            rule=rule.name,
            kind=rule.kind,
            subject=alert.subject,
            value=round(alert.value, 3),
            limit=rule.limit,
            severity=rule.severity,
            silence=silence.id if silence is not None else None,
        )

    def muting(self, rule: Rule, subject: str) -> tuple[Silence | None, Silence | None]:
        """The silence that mutes an alert of the rule about `subject` now, and the fitting one that expired last."""
        own = self._silences_of.get(rule.tenant)
        if own is None:
            own = [one for one in self.silences.values() if one.tenant == rule.tenant]
            self._silences_of[rule.tenant] = own
        return muting(own, rule, subject, self._clock_ms(), compile_pattern)

    # ---------------------------------------------------------------------------------------------------- rules

    async def put_rule(self, rule: Rule, known: Rule | None) -> None:
        """Stores a rule. `known`: the version that it changes; None for a new rule. The queues that a changed rule
        matches and its SLO's budget are determined anew; a disabled rule's alerts are removed.

        Raises `Conflict` where the tenant has its most rules or the rule was changed meanwhile, `NotFound` where it was
        deleted.
        """
        async with self._turn.change():
            self._take_over()
            _check_known(self.rules.get(rule.id), known, "alert rule")
            if known is None:
                own = sum(other.tenant == rule.tenant for other in self.rules.values())
                _check_room(own, RULES_PER_TENANT_MAX, "alert rules")
                _check_share(own, len(self.rules), RULES_MAX, "alert rules")
            ended = self.record.ending(rule) if known is not None and not rule.enabled else []
            await self._documents.write([put(RULES, rule.id, rule), *ended])
            self.record.ended(ended)
            self.rules[rule.id] = rule
            self._matches.pop(rule.id, None)
            self.sources.forget(rule.id)

    async def delete_rule(self, rule: Rule, *, is_as_known: bool = False) -> None:
        """`is_as_known`: only if the rule is still as given; otherwise raises `Conflict`, or `NotFound` if it was
        deleted."""
        async with self._turn.change():
            if is_as_known:
                self._take_over()
                _check_known(self.rules.get(rule.id), rule, "alert rule")
            ended = self.record.ending_with(rule)
            await self._documents.write([gone(RULES, rule.id), *ended])
            self.record.ended(ended)
            self.rules.pop(rule.id, None)
            self._asked.forget(rule.id)
            self._matches.pop(rule.id, None)
            self.sources.forget(rule.id)

    def rule(self, tenant: str, rule_id: str) -> Rule:
        """Raises `NotFound`."""
        rule = self.rules.get(rule_id)
        if rule is None or rule.tenant != tenant:
            raise NotFound(f"unknown alert rule {rule_id[:100]!r}; {RULE_IDS}")
        return rule

    # ----------------------------------------------------------------------------------------------- silences

    async def put_silence(self, silence: Silence, known: Silence | None) -> None:
        """Stores a silence. `known`: the version that it changes. Expired ones make room. Raises as `put_rule`."""
        async with self._turn.change():
            self._take_over()
            _check_known(self.silences.get(silence.id), known, "silence")
            own = [one for one in self.silences.values() if one.tenant == silence.tenant and one.id != silence.id]
            now_ms = self._clock_ms()
            over = [
                one
                for one in sorted(own, key=lambda one: one.ends_at_ms)
                if state_of(one, now_ms) == "expired"
                and (one.ends_at_ms < now_ms - HISTORY_MS_MAX or len(own) >= SILENCES_PER_TENANT_MAX)
            ]
            if len(own) >= SILENCES_PER_TENANT_MAX:
                over = over[:1] or over
            _check_room(len(own) - len(over), SILENCES_PER_TENANT_MAX, "silences")
            await self._documents.write([put(SILENCES, silence.id, silence), *(gone(SILENCES, one.id) for one in over)])
            for one in over:
                del self.silences[one.id]
            self.silences[silence.id] = silence
            self._silences_of.clear()

    def silence(self, tenant: str, silence_id: str) -> Silence:
        """Raises `NotFound`."""
        silence = self.silences.get(silence_id)
        if silence is None or silence.tenant != tenant:
            raise NotFound(f"unknown silence {silence_id[:100]!r}")
        return silence

    # ---------------------------------------------------------------------------------------------- receivers

    async def put_receiver(self, receiver: Receiver, known: Receiver | None) -> None:
        """Stores a receiver. `known`: the version that it changes. Raises as `put_rule`."""
        async with self._turn.change():
            self._take_over()
            _check_known(self.receivers.get(receiver.id), known, "receiver")
            if known is None:
                own = sum(other.tenant == receiver.tenant for other in self.receivers.values())
                _check_room(own, RECEIVERS_PER_TENANT_MAX, "receivers of alerts")
            await self._documents.write([put(RECEIVERS, receiver.id, receiver)])
            self.receivers[receiver.id] = receiver

    async def delete_receiver(self, receiver: Receiver, *, is_as_known: bool = False) -> None:
        """`is_as_known`: as in `delete_rule`. Raises `Conflict` while a rule names it."""
        async with self._turn.change():
            if is_as_known:
                self._take_over()
                _check_known(self.receivers.get(receiver.id), receiver, "receiver")
            named = [rule.name for rule in self.rules.values() if receiver.id in rule.receivers]
            if named:
                raise Conflict(
                    f"rule {named[0]!r} uses this receiver; remove it from {counted(len(named), 'rule')} first"
                )
            await self._documents.write([gone(RECEIVERS, receiver.id)])
            self.receivers.pop(receiver.id, None)

    def receiver(self, tenant: str, receiver_id: str) -> Receiver:
        """Raises `NotFound`."""
        receiver = self.receivers.get(receiver_id)
        if receiver is None or receiver.tenant != tenant:
            raise NotFound(f"unknown receiver {receiver_id[:100]!r}; {RECEIVER_IDS}")
        return receiver

    async def forget_tenant(self, tenant: str) -> list[str]:
        """Removes all of a deleted tenant; never refused. Returns the ids of the receivers that were removed."""
        async with self._turn.look():
            rules = [rule for rule in self.rules.values() if rule.tenant == tenant]
            silences = [one.id for one in self.silences.values() if one.tenant == tenant]
            receivers = [one.id for one in self.receivers.values() if one.tenant == tenant]
            ended = [document for rule in rules for document in self.record.ending_with(rule)]
            self.record.ended(ended)
            documents = [gone(RULES, rule.id) for rule in rules] + ended
            documents += [gone(SILENCES, one) for one in silences] + [gone(RECEIVERS, one) for one in receivers]
            documents += self.record.forget_tenant(tenant)
            for rule in rules:
                del self.rules[rule.id]
                self._asked.forget(rule.id)
                self._matches.pop(rule.id, None)
                self.sources.forget(rule.id)
            for silence_id in silences:
                del self.silences[silence_id]
            self._silences_of.clear()
            for receiver_id in receivers:
                del self.receivers[receiver_id]
            try:
                async with self._turn.limit():
                    await self._documents.write(documents)
            except (PushqError, TimeoutError) as error:
                log.warning("rules of a removed tenant are still stored", error=str(error))
        return receivers


def new_id(kind: str) -> str:
    """`rule_4f2a…`"""
    return f"{kind}_{secrets.token_hex(ID_BYTES)}"


def _check_known(stored: Known | None, known: Known | None, what: str) -> None:
    """Raises if the stored object was deleted or changed since the caller read it."""
    if stored is None and known is not None:
        raise NotFound(f"the {what} has been deleted since you read it")
    if stored != known:
        raise Conflict(f"the {what} has been changed since you read it; read it again and retry")


def _check_room(held: int, most: int, what: str) -> None:
    if held >= most:
        raise Conflict(f"the limit of {held} {what} is reached; delete one first")


def _check_share(own: int, held: int, most: int, what: str) -> None:
    """A tenant may have as many as are still free in the server, and its first one for as long as any is free."""
    free = most - held
    if free <= 0:
        raise Conflict(
            f"this server has reached its limit of {held} {what} over all tenants; ask an operator to make room"
        )
    if own and own >= free:
        raise Conflict(
            f"this tenant has {own} {what}, and the last {free} of this server's {most} are reserved for other "
            "tenants; delete one first"
        )

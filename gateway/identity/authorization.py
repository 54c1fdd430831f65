"""Authorization: decides what a caller's scopes let it do to a queue. Pure rules, without clock or store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from backend_store.model import OPERATOR, FieldError, InvalidRequest
from gateway.limits import ACCESS_DECISIONS_MAX, NAME_CHARS_MAX, SCOPES_PER_KEY_MAX
from push.operations.checks import field as invalid_field

Verb = Literal["publish", "consume", "view", "manage"]
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)
ADMIN: Final = "admin"
COMPANIONS: Final = (".dead", ".late")
"""Suffixes of queues that belong to another queue, whose scopes cover them."""

SCOPE_PATTERN: Final = rf"^({ADMIN}|{OPERATOR}|({'|'.join(VERBS)}):[A-Za-z0-9_.*-]{{1,{NAME_CHARS_MAX}}})$"
_PATTERN = re.compile(rf"[A-Za-z0-9_.*-]{{1,{NAME_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True)
class Access:
    """Compiled scopes. Decisions are cached, because a key uses the same few queues again and again."""

    scopes: tuple[str, ...]
    is_admin: bool
    is_operator: bool
    _patterns: dict[Verb, tuple[re.Pattern[str], ...]]
    _within: Access | None = None
    """The access that bounds this one: a ticket's scopes never reach further than its key's."""
    _decided: dict[tuple[Verb, str], bool] = field(default_factory=dict, compare=False)

    def may(self, verb: Verb, queue: str) -> bool:
        decided = self._decided.get((verb, queue))
        if decided is None:
            if len(self._decided) >= ACCESS_DECISIONS_MAX:
                self._decided.clear()
            decided = self._decided[verb, queue] = self._decide(verb, queue)
        return decided

    @property
    def within(self) -> Access | None:
        """The wider access this one was narrowed from; None if it was not."""
        return self._within

    def _decide(self, verb: Verb, queue: str) -> bool:
        if self._within is not None and not self._within.may(verb, queue):
            return False
        if self.is_admin:
            return True
        names = (queue, owner_of(queue))
        return any(pattern.fullmatch(name) for pattern in self._patterns[verb] for name in names)

    def narrowed(self, scopes: Sequence[str]) -> Access:
        """This access, restricted to `scopes`."""
        wanted = compile_scopes(scopes)
        return Access(
            scopes=wanted.scopes,
            is_admin=wanted.is_admin and self.is_admin,
            is_operator=wanted.is_operator and self.is_operator,
            _patterns=wanted._patterns,
            _within=self,
        )


Role = Literal["member", "administrator", "operator"]
"""A member has scopes for queues; an administrator may do everything in its tenant; an operator in all tenants."""
Act = Literal["keys", "operators' keys", "connections", "queue deletion", "tenants"]
"""Kinds of administrative acts."""
Reach = Literal["nothing", "own tenant", "all tenants"]

REACH: Final[dict[Act, dict[Role, Reach]]] = {
    "keys": {"member": "nothing", "administrator": "own tenant", "operator": "all tenants"},
    # Making or rotating a key reveals its secret, so an administrator would become an operator.
    "operators' keys": {"member": "nothing", "administrator": "nothing", "operator": "all tenants"},
    "connections": {"member": "nothing", "administrator": "own tenant", "operator": "all tenants"},
    "queue deletion": {"member": "nothing", "administrator": "own tenant", "operator": "own tenant"},
    "tenants": {"member": "nothing", "administrator": "nothing", "operator": "all tenants"},
}


def role_of(access: Access) -> Role:
    if access.is_operator:
        return "operator"
    return "administrator" if access.is_admin else "member"


def may_administer(access: Access, act: Act, *, is_own_tenant: bool = True) -> bool:
    reach = REACH[act][role_of(access)]
    return reach == "all tenants" or (reach == "own tenant" and is_own_tenant)


def compile_scopes(scopes: Iterable[str]) -> Access:
    """Compiles scopes that `check_scopes` accepted when they were given."""
    kept = tuple(scopes)
    patterns: dict[Verb, tuple[re.Pattern[str], ...]] = {}
    for verb in VERBS:
        wanted = (scope.partition(":")[2] for scope in kept if scope.startswith(f"{verb}:"))
        patterns[verb] = tuple(compile_pattern(pattern) for pattern in wanted)
    is_operator = OPERATOR in kept
    # An operator is an administrator everywhere, so also at home.
    return Access(kept, is_operator or ADMIN in kept, is_operator, patterns)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern with `*` to a regular expression that matches a name in one pass.

    The first place where a part fits is as good as any later one, so atomic groups prevent backtracking: with a plain
    `.*` between the parts, a pattern of many `*` would block the event loop for minutes.
    """
    first, *parts = map(re.escape, re.sub(r"\*+", "*", pattern).split("*"))
    if not parts:
        return re.compile(first)
    return re.compile(first + "".join(f"(?>.*?{part})" for part in parts[:-1]) + ".*" + parts[-1])


def owner_of(queue: str) -> str:
    """The queue that a companion belongs to; for any other queue its own name."""
    for suffix in COMPANIONS:
        if queue.endswith(suffix):
            return queue[: -len(suffix)]
    return queue


def check_scopes(scopes: Sequence[str], *, pointer: str = "/scopes") -> tuple[str, ...]:
    """The scopes without duplicates. Raises `InvalidRequest`, which says what is wrong with each."""
    if len(scopes) > SCOPES_PER_KEY_MAX:  # before each is checked
        raise invalid_field(pointer, f"a key can have at most {SCOPES_PER_KEY_MAX} scopes, not {len(scopes)}")
    errors = [
        FieldError(f"{pointer}/{index}", wrong)
        for index, scope in enumerate(scopes)
        if (wrong := _wrong_with(scope)) is not None
    ]
    if not scopes:
        errors.append(FieldError(pointer, "scopes is empty; give at least one"))
    if errors:
        raise InvalidRequest(f"{errors[0].pointer}: {errors[0].detail}", errors=tuple(errors))
    return tuple(dict.fromkeys(scopes))


def _wrong_with(scope: str) -> str | None:
    if scope in (ADMIN, OPERATOR):
        return None
    verb, colon, pattern = scope.partition(":")
    if verb not in VERBS or not colon:
        return f"invalid scope {scope[:200]!r}: use {', '.join(v + ':PATTERN' for v in VERBS)}, {ADMIN} or {OPERATOR}"
    if _PATTERN.fullmatch(pattern) is None:
        return (
            f"invalid scope {scope[:200]!r}: a pattern has 1 to {NAME_CHARS_MAX} characters from A-Z a-z 0-9 _ . "
            "- and *"
        )
    return None

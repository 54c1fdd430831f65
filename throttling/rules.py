"""Rate rules, and the two header fields that tell a caller what is left.

The fields follow draft-ietf-httpapi-ratelimit-headers-10. It is a draft: the names may still change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from throttling.config import GRANT_SECONDS, RATE_PER_S_MAX, WINDOW_S_MAX

Header = tuple[bytes, bytes]
Dimension = Literal["principal", "tenant", "queue", "address"]
Operation = Literal["publish", "receive", "ack", "admin", "connect"]
Unit = Literal["requests", "messages", "bytes"]

DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Rule:
    """At most `quota` in `window_s` seconds, all of which may come at once, for each subject by itself."""

    name: str
    quota: int
    window_s: int = 1
    per: tuple[Dimension, ...] = ("principal",)
    operations: frozenset[Operation] = frozenset(OPERATIONS)
    unit: Unit = "requests"
    is_closed_without_store: bool = False
    """What happens to a request while the shared counts cannot be reached: refused, or counted by this gateway
    alone."""
    window_ns: int = field(init=False)
    ahead: int = field(init=False)
    """The most that a gateway takes from the shared counts in advance."""
    is_plain: bool = field(init=False)
    """Whether it counts requests by principal, as most rules do."""
    policy: str = field(init=False)
    _state_format: str = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.window_s <= WINDOW_S_MAX:
            raise ValueError(f"rule {self.name!r}: window_s must be between 1 and {WINDOW_S_MAX}, not {self.window_s}")
        if not 1 <= self.quota <= RATE_PER_S_MAX * self.window_s:
            most = RATE_PER_S_MAX * self.window_s
            raise ValueError(
                f"rule {self.name!r}: quota must be between 1 and {most} for {self.window_s} s, not {self.quota}"
            )
        set_ = object.__setattr__
        set_(self, "window_ns", self.window_s * NS_PER_S)
        set_(self, "ahead", min(self.quota // 20, int(self.quota * GRANT_SECONDS) // self.window_s))
        set_(self, "is_plain", self.per == ("principal",) and self.unit == "requests")
        unit = {"requests": "", "messages": ';qu="messages"', "bytes": ';qu="content-bytes"'}[self.unit]
        set_(self, "policy", f'"{self.name}";q={self.quota}{unit};w={self.window_s}')
        set_(self, "_state_format", f'"{self.name}";r=%d;t=%d')

    def state(self, remaining: int) -> str:
        """An item of `RateLimit`; `t` is the number of seconds until the whole quota is available again."""
        full_after_s = -((remaining - self.quota) * self.window_s // self.quota)
        return self._state_format % (remaining, full_after_s)

    @property
    def words(self) -> str:
        return f"{self.quota} {self.unit} per {self.window_s} s per {' and '.join(self.per)}"


def headers(rules: Iterable[Rule], rule: Rule, remaining: int) -> tuple[Header, Header]:
    """`RateLimit-Policy` with every rule that applied, and `RateLimit` with `rule`: the one that refused or has the
    least left."""
    policies = list(dict.fromkeys([each.policy for each in rules]))
    policy = policies[0] if len(policies) == 1 else ", ".join(policies)
    return (b"ratelimit-policy", policy.encode()), (b"ratelimit", rule.state(remaining).encode())


PER_PRINCIPAL = Rule("principal", quota=50_000)
"""The only rule without settings: high enough that only a runaway caller reaches it."""

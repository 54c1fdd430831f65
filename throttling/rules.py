"""The rules a request is held to, and the two header fields that tell a caller what is left.

The fields follow draft-ietf-httpapi-ratelimit-headers-10. It is a draft: the names may still change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from throttling.decision import Decision

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Rule:
    """At most `quota` requests in `window_s` seconds, all of which may come at once."""

    name: str
    quota: int
    window_s: int
    rate: int = field(init=False)
    """Requests a second that are earned back."""
    policy_header: Header = field(init=False)
    _state_format: bytes = field(init=False)

    def __post_init__(self) -> None:
        if self.quota < self.window_s or self.window_s < 1:
            raise ValueError(f"rule {self.name!r}: {self.quota} in {self.window_s} s is less than one request a second")
        policy = f'"{self.name}";q={self.quota};w={self.window_s}'
        object.__setattr__(self, "rate", self.quota // self.window_s)
        object.__setattr__(self, "policy_header", (b"ratelimit-policy", policy.encode("ascii")))
        object.__setattr__(self, "_state_format", f'"{self.name}";r=%d;t=%d'.encode("ascii"))

    def headers(self, decision: Decision) -> tuple[Header, Header]:
        """`RateLimit-Policy` and `RateLimit`, ready for an ASGI answer; `t` is the seconds until all is left again."""
        remaining = decision.remaining
        full_after_s = -((remaining - self.quota) // self.rate)
        return self.policy_header, (b"ratelimit", self._state_format % (remaining, full_after_s))


PER_PRINCIPAL = Rule("principal", quota=50_000, window_s=1)
"""The one rule in force: high enough that only a runaway caller meets it."""

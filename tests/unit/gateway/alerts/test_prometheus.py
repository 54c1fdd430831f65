"""Rules as a file for Prometheus: names and patterns stay text, and what metrics cannot say is left out."""

from __future__ import annotations

import msgspec
import yaml

from gateway.alerts.core.rules import KINDS, Rule
from gateway.alerts.prometheus import expression_of, rules_file
from gateway.alerts.views import detail

RULE = Rule(
    "rule_1", "shop", "deep", "depth", "orders.*", 100, 90, 60_000, 0, 60_000, "warning", (), True, "", None, None, 0,
    "me", 0,
)  # fmt: skip


def test_a_pattern_becomes_an_anchored_expression() -> None:
    assert expression_of(RULE) == 'pushq_queue_ready_messages{tenant="shop", queue=~"orders\\\\..*"} > 100'


def test_a_name_is_no_template_and_breaks_nothing() -> None:
    rule = msgspec.structs.replace(RULE, name='a"b\n{{ $value }}: c')
    (entry,) = yaml.safe_load(rules_file([rule]))["groups"][0]["rules"]
    assert entry["alert"] == 'a"b\n{{ $value }}: c'
    assert "{{ $value }}: c" not in entry["annotations"]["summary"].split(": ", 1)[0]


def test_what_is_off_or_cannot_be_said_is_left_out() -> None:
    off = msgspec.structs.replace(RULE, enabled=False)
    keys = msgspec.structs.replace(RULE, kind="key_days", name="keys")
    text = rules_file([off, keys])
    assert (
        yaml.safe_load(text) == {"groups": [{"name": "pushq", "rules": []}]} and '# not for Prometheus: "keys"' in text
    )


def test_every_kind_is_said_or_left_out() -> None:
    said = {kind for kind in KINDS if expression_of(msgspec.structs.replace(RULE, kind=kind)) is not None}
    assert KINDS.keys() - said == {"key_days", "slo_availability", "slo_latency", "memory_used_percent"}


def test_a_limit_keeps_every_digit() -> None:
    for limit, shown in ((1_234_567.0, "1234567"), (12_345_678.5, "12345678.5"), (0.1, "0.1"), (-3.0, "-3")):
        for kind in ("depth", "consumer_absence"):
            expression = expression_of(msgspec.structs.replace(RULE, kind=kind, limit=limit))
            assert expression is not None and f" > {shown} " in f"{expression} "
    assert "1,234,567" in detail("deep", "depth", "orders", "firing", 2_000_000, 1_234_567.0)

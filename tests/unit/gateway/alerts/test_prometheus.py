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


def test_what_is_off_is_left_out() -> None:
    off = msgspec.structs.replace(RULE, enabled=False)
    assert yaml.safe_load(rules_file([off])) == {"groups": [{"name": "pushq", "rules": []}]}


def test_every_kind_is_said() -> None:
    said = {kind: expression_of(msgspec.structs.replace(RULE, kind=kind, limit=1)) for kind in KINDS}
    assert said["key_days"] == '(pushq_key_expiry_timestamp_seconds{tenant="shop"} - time()) / 86400 < 1'
    assert said["slo_latency"] == 'max by (tenant, rule) (pushq_slo_burn_ratio{rule="rule_1"}) > 1'
    every = 'pushq_queue_ready_messages{tenant="shop", queue=~"orders\\\\..*"}'
    assert said["total_depth"] == f"sum by (tenant) (max by (tenant, queue) ({every})) > 1"
    assert said["replica_lag"] == "max by (shard) (pushq_shard_lag_entries) > 1"


def test_a_summary_says_which_queue_shard_or_key_it_is_about() -> None:
    for kind, subject in (
        ("depth", "$labels.queue"),
        ("total_depth", "orders.*: "),
        ("out_of_sync", "$labels.shard"),
        ("key_days", "$labels.key"),
    ):
        (entry,) = yaml.safe_load(rules_file([msgspec.structs.replace(RULE, kind=kind)]))["groups"][0]["rules"]
        assert subject in entry["annotations"]["summary"]


def test_a_limit_keeps_every_digit() -> None:
    for limit, shown in ((1_234_567.0, "1234567"), (12_345_678.5, "12345678.5"), (0.1, "0.1"), (-3.0, "-3")):
        for kind in ("depth", "consumer_absence"):
            expression = expression_of(msgspec.structs.replace(RULE, kind=kind, limit=limit))
            assert f" > {shown} " in f"{expression} "
    assert "1,234,567" in detail("deep", "depth", "orders", "firing", 2_000_000, 1_234_567.0)

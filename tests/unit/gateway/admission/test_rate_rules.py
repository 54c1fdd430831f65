"""Rules as an operator writes them: each mistake is named, and what is left out has its default."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend_store.model import Quotas
from gateway.admission.rate_rules import RateRule, rate_rules, rules_of, rules_of_quotas
from throttling.rules import OPERATIONS, PER_PRINCIPAL


def test_without_rules_there_is_the_one_for_principals() -> None:
    assert rules_of(()) == (PER_PRINCIPAL,)


def test_rule_called_principal_takes_the_place_of_the_default() -> None:
    (rule,) = rules_of(rate_rules([{"name": "principal", "quota": 7}]))
    assert (rule.quota, rule.per, rule.unit) == (7, ("principal",), "requests")


def test_other_rules_stand_beside_it() -> None:
    rules = rules_of(rate_rules([{"name": "b", "quota": 7, "unit": "bytes", "per": ["tenant", "queue"]}]))
    assert [rule.name for rule in rules] == ["principal", "b"]
    assert rules[1].operations == {"publish"}


def test_rules_of_a_variable_are_json() -> None:
    assert rate_rules(json.dumps([{"name": "a", "quota": 1}])) == (RateRule("a", 1),)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, "must be a list: write"),
        ("{", "not valid JSON"),
        ([{"quota": 1}], r"\[0\]: .*name"),
        ([{"name": "A", "quota": 1}], "starting with a letter"),
        ([{"name": "tenant-bytes", "quota": 1}], "choose another"),
        ([{"name": "a", "quota": 0}], "quota must be between 1 and 1000000000"),
        ([{"name": "a", "quota": 1, "window_s": 0}], "window_s must be between 1 and 86400"),
        ([{"name": "a", "quota": 1, "windows": 2}], "`windows`; did you mean 'window_s'"),
        ([{"name": "a", "quota": 1, "per": "planet"}], r"planet.*; per is principal, tenant, queue or address"),
        (
            [{"name": "a", "quota": 1, "operations": ["read"]}],
            "; operations is publish, receive, ack, admin or connect",
        ),
        ([{"name": "a", "quota": "1"}], r"\[0\]: Expected `int`"),
        ([{"name": "a", "quota": 1, "per": ["queue", "queue"]}], "once"),
        ([{"name": "a", "quota": 1, "operations": []}], "operations is empty"),
        ([{"name": "a", "quota": 1, "operations": ["eat"]}], "eat"),
        (
            [{"name": "a", "quota": 1, "unit": "messages", "operations": ["ack"]}],
            "applies to publishes only: set operations to publish,",
        ),
        ([{"name": "principal", "quota": 1, "per": "queue"}], "is reported in every response, so it cannot have per,"),
        ([{"name": "a", "quota": 1, "when_store_is_away": "maybe"}], "maybe"),
        ([{"name": "a", "quota": 1}, {"name": "a", "quota": 2}], r"\[1\]: duplicate rule 'a'"),
        ([{"name": f"r{n}", "quota": 1} for n in range(33)], "the maximum is 32"),
    ],
)
def test_mistake_is_named(given: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        rate_rules(given)


def test_quotas_of_a_tenant_are_rules_of_a_second() -> None:
    rules = rules_of_quotas(Quotas(requests_per_s=5, publish_bytes_per_s=1 << 50))
    assert [(rule.name, rule.quota, rule.window_s) for rule in rules] == [
        ("tenant-requests", 5, 1),
        ("tenant-bytes", 1_000_000_000, 1),
    ]
    assert rules[0].operations == set(OPERATIONS) and rules[1].operations == {"publish"}

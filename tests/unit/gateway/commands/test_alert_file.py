"""Documents of alert rules: what is wrong in one is said with its place, and rules are known by their names."""

from __future__ import annotations

import io
import json
from typing import Any

import click
import pytest

from gateway.commands.alert_file import FIELDS, RULES_MAX, Planned, compared, read, whole_of

RULE = {"name": "deep", "kind": "depth", "queue": "q", "limit": 5}


def document(*rules: Any, **more: Any) -> io.BytesIO:
    return io.BytesIO(json.dumps({"version": 1, "rules": rules} | more).encode())


def test_rules_are_read_as_they_stand() -> None:
    assert read(document(RULE, {**RULE, "name": "other"})) == [RULE, {**RULE, "name": "other"}]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (io.BytesIO(b"rules:"), "not valid JSON"),
        (io.BytesIO(b'{"groups": []}'), "unknown field `groups`"),
        (document(RULE, version=2), "version 2"),
        (document({"kind": "depth"}), "/rules/0/name: name is required"),
        (document(RULE, RULE), '/rules/1/name: duplicate rule "deep"'),
        (document(*[RULE] * (RULES_MAX + 1)), f"the maximum is {RULES_MAX}"),
    ],
)
def test_a_document_that_is_wrong_is_refused_with_the_place(file: io.BytesIO, said: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        read(file)
    assert said in refused.value.message


def test_a_rule_differs_in_the_fields_that_are_given_alone() -> None:
    there = {**RULE, "limit": 5.0, "id": "r1", "note": "by hand", "state": {}}
    assert compared(RULE, []) == Planned("deep", "missing", None, {})
    assert compared(RULE, [there]) == Planned("deep", "same", "r1", {})
    assert compared({**RULE, "limit": 7}, [there]).changes == {"limit": {"is": 5.0, "wanted": 7}}
    assert compared(RULE, [{**there, "id": "r0", "queue": "*"}, there]) == Planned("deep", "same", "r1", {})


def test_a_rule_is_given_as_the_server_takes_it() -> None:
    from gateway.api.shapes.alerts import RuleBody

    assert set(RuleBody.__struct_fields__) == FIELDS


def test_what_an_update_keeps_goes_with_the_kind_that_is_wanted() -> None:
    """Or the server refuses it, after other rules of the file were changed."""
    there = {"id": "r1", "name": "deep", "kind": "growth", "queue": "q", "limit": 9.0, "clear_at": 8.0, "note": "ours"}
    there |= {"window_ms": 600_000, "objective": None, "latency_ms": None}
    assert whole_of(RULE, there) == RULE | {"note": "ours"}
    assert whole_of(RULE | {"kind": "growth"}, there) == {
        **RULE,
        "kind": "growth",
        "note": "ours",
        "window_ms": 600_000,
    }
    slo = {"name": "deep", "kind": "slo_latency", "objective": 99.9, "latency_ms": 100}
    assert whole_of(slo, there) == slo | {"queue": "q", "note": "ours"}

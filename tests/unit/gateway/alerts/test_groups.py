"""Many alerts of one rule that change at once are told together: under one key, with the worst of them first."""

from __future__ import annotations

import msgspec

from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.groups import Group, notes
from gateway.alerts.limits import GROUP_ALERTS_MIN
from tests.unit.gateway.alerts.test_alerts import RULE

BELOW = msgspec.structs.replace(RULE, id="rule_2", kind="key_days")


def alert(number: int, state: str = "firing", *, rule: str = RULE.id) -> Alert:
    return Alert(f"{rule}.q{number}.0", rule, f"q{number}", state, float(number), 0)  # type: ignore[arg-type]


def group_of(*alerts: Alert) -> Group:
    ((_, _, group),) = notes((RULE, one) for one in alerts)
    assert group is not None
    return group


def test_a_few_are_told_one_by_one() -> None:
    few = [(RULE, alert(number)) for number in range(GROUP_ALERTS_MIN - 1)]
    assert [(note.rule, note.alert) for note in notes(few)] == few


def test_what_begins_and_what_ends_and_other_rules_are_told_apart() -> None:
    changed = [(RULE, alert(number, state)) for number in range(GROUP_ALERTS_MIN) for state in ("firing", "resolved")]
    changed += [(BELOW, alert(number, rule=BELOW.id)) for number in range(GROUP_ALERTS_MIN)]
    found = list(notes(changed))
    assert [(note.rule.id, note.alert.state, note.group and note.group.alerts) for note in found] == [
        (RULE.id, "firing", GROUP_ALERTS_MIN),
        (RULE.id, "resolved", GROUP_ALERTS_MIN),
        (BELOW.id, "firing", GROUP_ALERTS_MIN),
    ]
    assert [note.alert.subject for note in found] == ["q9", "q9", "q0"], "where less is worse, the least"


def test_the_key_is_of_the_alerts_whatever_their_values_and_order() -> None:
    some = [alert(number) for number in range(GROUP_ALERTS_MIN)]
    again = [msgspec.structs.replace(one, value=7.0) for one in reversed(some)]
    assert group_of(*some).key == group_of(*again).key != group_of(*some, alert(99)).key

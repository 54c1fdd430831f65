"""The rule file that `pushq alert import` reads: rules suggested by anomalies, where some kind of alert covers them.

    {"version": 1, "rules": [{"name": "held above usual: orders", "kind": "depth", "queue": "orders", "limit": 5000,
                              "for_ms": 300000, "note": "…"}]}

Alerts watch waiting messages. A queue that holds more than usual gets a rule on depth. A queue that receives more than
its consumers usually settle, or whose consumers settle half as much as usual, gets a rule on growth, limited to the
difference. No kind of alert covers fewer published or more settled messages than usual.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from spark.wording import counted

VERSION: Final = 1
RULES_MAX: Final = 1_000
"""For all tenants together; the largest deviations come first."""
FOR_MS: Final = 300_000
WINDOW_MS: Final = 300_000
NAME_CHARS_MAX: Final = 128
_HOUR_SECONDS: Final = 3_600
_DIGITS: Final = 4

Suggestion = Mapping[str, Any]
"""`tenant`, `queue`, `measure`, `side`, `hours`, `usual_least`, `usual_most`, `low`, `high`, `score_max`."""


def rules(suggested: Iterable[Suggestion]) -> dict[str, list[dict[str, Any]]]:
    """The rules of each tenant, in the form that `POST /v1/alert-rules` takes. The first rule of a name wins."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for one in suggested:
        if (limit := _limit(one)) is not None and limit > 0:
            rule = _rule(one, limit)
            found.setdefault(one["tenant"], {}).setdefault(rule["name"], rule)
    return {tenant: list(theirs.values()) for tenant, theirs in found.items()}


def written(tenants_rules: Sequence[Mapping[str, Any]]) -> str:
    """The file's text."""
    return json.dumps({"version": VERSION, "rules": tenants_rules}, indent=2, ensure_ascii=False) + "\n"


def _rule(one: Suggestion, limit: float) -> dict[str, Any]:
    is_depth = one["measure"] == "held"
    name = f"{one['measure']} {one['side']} usual: {one['queue']}"
    far = f"up to {one['score_max']:.1f} deviations"
    note = f"{one['measure']} {one['side']} its median in {counted(one['hours'], 'hour')}, by {far}"
    rule = {"name": name[:NAME_CHARS_MAX], "kind": "depth" if is_depth else "growth", "queue": one["queue"]}
    return rule | {"limit": limit, "for_ms": FOR_MS, "note": note} | ({} if is_depth else {"window_ms": WINDOW_MS})


def _limit(one: Suggestion) -> float | None:
    """The limit in messages or messages per second; None if no kind of alert covers the measure."""
    match one["measure"], one["side"]:
        case "held", "above":
            return float(one["high"])
        case "published", "above":
            return round(float(one["high"] - one["usual_most"]) / _HOUR_SECONDS, _DIGITS)
        case "settled", "below":
            return round(float(one["usual_least"] - one["low"]) / _HOUR_SECONDS, _DIGITS)
        case _:
            return None

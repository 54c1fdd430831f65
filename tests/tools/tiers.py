"""Which tests must hold on any machine, and which may be asked again: the table, and what a run's reports mean.

*pure* tests move time by hand and start no process, so one that fails has found something. *real* tests drive servers,
browsers, disks and clusters on whatever machine this is: one that fails is run again, alone, and the closing lines
name it either way.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

Tier = Literal["pure", "real"]
Outcome = Literal["passed", "failed", "skipped"]

TIER_OF: dict[str, Tier] = {
    "contracts/memory": "pure",
    "model": "pure",
    "simulation": "pure",
    "unit": "pure",
    # Sockets, processes, threads and disks whose timing matters.
    "unit/backend_store/cluster/test_session.py": "real",
    "unit/backend_store/hosts": "real",
    "unit/backend_store/metadata/test_remote.py": "real",
    "unit/backend_store/node/commit/test_committer.py": "real",
    "unit/backend_store/node/test_deadlines.py": "real",
    "unit/backend_store/node/test_node.py": "real",
    "unit/backend_store/node/views/test_scan_scheduler.py": "real",
    "unit/backend_store/outer/test_manager.py": "real",
    "unit/backend_store/remote": "real",
    "unit/backend_store/service": "real",
    "unit/backend_store/shard": "real",
    "unit/backend_store/storage": "real",
    "unit/backend_store/wire/test_sockets.py": "real",
    "unit/gateway/alerts/test_turn.py": "real",
    "unit/gateway/alerts/test_webhooks.py": "real",
    "unit/gateway/cluster_demo/test_app.py": "real",
    "unit/gateway/processes": "real",
    "unit/gateway/metadata/test_catalog.py": "real",
    "unit/gateway/test_cli.py": "real",
    "unit/gateway/commands/test_demo.py": "real",
    "unit/gateway/test_dev_ca.py": "real",
    "unit/gateway/test_dev_cluster.py": "real",
    "unit/gateway/listener/test_proxy_gate.py": "real",
    "unit/gateway/api/test_expanding_queues.py": "real",
    "unit/gateway/admission/test_dependency_guard.py": "real",
    "unit/gateway/identity/test_jwks_refresh.py": "real",
    "unit/gateway/encryption/test_data_keys.py": "real",
    "unit/gateway/listener/test_unread_body.py": "real",
    "unit/gateway/listener/test_server.py": "real",
    "unit/gateway/encryption/test_master_keys.py": "real",
    "unit/gateway/listener/test_head_cache.py": "real",
    "unit/gateway/roles/test_systemd.py": "real",
    "unit/gateway/listener/test_upgrade_offers.py": "real",
    "unit/gateway/listener/test_fast_path.py": "real",
    "unit/gateway/usage/test_led_export.py": "real",
    "unit/push/client": "real",
    "unit/push/session/test_runs_elsewhere.py": "real",
    "unit/spark/test_gateway.py": "real",
    "unit/support": "real",
    "unit/support/test_network.py": "pure",
}
"""A path below `tests/`, or the beginning of one; the longest that fits counts, and what has none is real."""

RERUNS_MAX = 10
"""Tests of the real tier that may need another run: with more of them it is not the machine."""
TRIES_MAX = 2
"""Further runs of a test of the real tier."""
QUARANTINED_MAX = 10


def tier_of(path: str) -> Tier:
    """The tier of a test or its file; `path` as in an id, with or without `tests/` in front."""
    inside = path.partition("::")[0].removeprefix("tests/")
    fits = [name for name in TIER_OF if inside == name or inside.startswith(f"{name}/")]
    return TIER_OF[max(fits, key=len)] if fits else "real"


def is_of(path: str, tier: Tier) -> bool:
    """Whether a file, or a folder with anything below it, is of that tier."""
    inside = path.removeprefix("tests/")
    return tier_of(inside) == tier or any(
        name.startswith(f"{inside}/") and other == tier for name, other in TIER_OF.items()
    )


class Report(NamedTuple):
    """What became of one test in one run: the worst of its phases, all their time, and the first failure's text."""

    test: str
    outcome: Outcome
    seconds: float
    text: str = ""


class Quarantined(NamedTuple):
    """A test that may fail for now: a debt, with a reason and a date."""

    test: str
    reason: str
    since: str


class BadQuarantine(ValueError):
    """The file of quarantined tests is not as it must be; the text says which entry and what it lacks."""


def read_quarantine(file: Path) -> list[Quarantined]:
    """The entries of `tests/quarantine.toml`: `[[quarantined]]` with `test`, `reason` and `since` each."""
    found = []
    for number, entry in enumerate(tomllib.loads(file.read_text()).get("quarantined", []), 1):
        if set(entry) != {*Quarantined._fields} or not all(str(value).strip() for value in entry.values()):
            raise BadQuarantine(
                f"entry {number}: it needs exactly {', '.join(Quarantined._fields)}, none of them empty"
            )
        if tier_of(entry["test"]) == "pure":
            raise BadQuarantine(f"entry {number}: {entry['test']} is pure; it is mended, not put aside")
        found.append(Quarantined(entry["test"], entry["reason"], str(entry["since"])))
    if len(found) > QUARANTINED_MAX:
        raise BadQuarantine(f"{len(found)} tests are quarantined; at most {QUARANTINED_MAX} may be")
    return found


class Verdict(NamedTuple):
    """What a whole run says. `failed` is why it is red; tests in it have failed each time they ran."""

    failed: list[Report]
    reran: list[Report]
    """Passed when asked again; with the first failure's text."""
    excused: list[Report]
    """Failed and quarantined."""
    complaints: list[str]
    """Why it is red beside tests that failed."""

    @property
    def is_green(self) -> bool:
        return not self.failed and not self.complaints


def to_run_again(reports: Iterable[Report], quarantine: Collection[str]) -> list[Report]:
    """Failed tests of the real tier that deserve another run; none where so many failed that it would prove nothing."""
    again = [one for one in reports if one.outcome == "failed" and _may_run_again(one.test, quarantine)]
    return again if len(again) <= RERUNS_MAX else []


def _may_run_again(test: str, quarantine: Collection[str]) -> bool:
    return tier_of(test) == "real" and test not in quarantine


def judge(reports: Iterable[Report], again: Mapping[str, bool], quarantine: Collection[str]) -> Verdict:
    """`again`: of tests that were run again, whether one of those runs passed."""
    verdict, ran = Verdict([], [], [], []), set()
    skipped = []
    for one in reports:
        ran.add(one.test)
        if one.outcome == "skipped":
            skipped.append(one.test)
        elif one.outcome == "failed":
            where = verdict.failed
            if one.test in quarantine:
                where = verdict.excused
            elif again.get(one.test):
                where = verdict.reran
            where.append(one)
    if not ran:
        verdict.complaints.append("no test ran")
    if skipped:
        verdict.complaints.append(
            f"{len(skipped)} skipped, and a skip hides what was not checked: {', '.join(skipped)}"
        )
    first = [one for one in verdict.failed + verdict.reran if _may_run_again(one.test, quarantine)]
    if len(first) > RERUNS_MAX:
        verdict.complaints.append(f"{len(first)} tests needed another run; at most {RERUNS_MAX} may")
    verdict.complaints.extend(f"quarantined and not there: {test}" for test in quarantine if test not in ran)
    return verdict

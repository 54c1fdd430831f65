"""`pushq alert` and the scrape of one tenant, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.cli import Cli
from tests.support.patience import until
from tests.support.server import PushqServer


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with PushqServer(tmp_path_factory.mktemp("alerts") / "data") as server:
        yield Cli(server)


def test_an_alert_from_its_rule_to_its_silence(cli: Cli, tmp_path: Path) -> None:
    cli("queue", "create", "orders")
    receiver = json.loads(cli("alert", "add-receiver", "log", "--json").out)
    given = ("too deep", "--kind", "depth", "--queue", "ord*", "--limit", "1", "--receiver", receiver["id"])
    rule = cli("alert", "add", *given).out.strip()
    for body in ("1", "2", "3"):
        cli("publish", "orders", body)
    until(lambda: "firing" in cli("alert", "list").out, "the alert fires")
    assert json.loads(cli("alert", "add", *given, "--preview", "--json").out)["firing"] == 1
    assert json.loads(cli("alert", "test", rule, "--json").out)["items"][0]["ok"]
    silence = cli("alert", "silence", "--queue", "orders", "--minutes", "5", "--reason", "we know").out.strip()
    (alert,) = json.loads(cli("alert", "list", "--state", "firing", "--json").out)["items"]
    assert alert["silenced_by"] == silence and alert["rule"] == rule
    assert "we know" in cli("alert", "silences").out
    cli("alert", "unsilence", silence)
    assert "expired" in cli("alert", "silences").out
    assert "too deep" in cli("alert", "rules").out and "too deep" in cli("alert", "history").out
    assert "FOR MS" in cli("alert", "rules").out and "True" not in cli("alert", "rules").out
    assert "slo_availability" in cli("alert", "kinds").out and receiver["id"] in cli("alert", "receivers").out
    assert "pushq_queue_ready_messages" in cli("alert", "export", "--prometheus").out
    assert cli("alert", "remove", rule, "--yes", "--json").json() == {"id": rule, "deleted": True}
    assert json.loads(cli("alert", "list", "--json").out)["items"] == []


def test_a_rule_or_receiver_that_is_not_there_ends_with_6(cli: Cli) -> None:
    silence = cli.any("alert", "silence", "--rule", "absent", "--for", "5m", "--reason", "r")
    assert silence.code == 6 and "'absent'" in silence.err
    given = ("rule", "--kind", "depth", "--limit", "1", "--receiver")
    assert cli.any("alert", "add", *given, "absent").code == 6
    assert cli.any("alert", "add", *given, "absent", "--preview").code == 6
    assert cli.any("alert", "add", "rule", "--kind", "absent", "--limit", "1").code == 1
    for command in (("remove", "a/b?c", "--yes"), ("test", "a/b?c"), ("unsilence", "a/b?c")):
        assert cli.any("alert", *command).code == 6, command


def test_a_silence_of_nothing_or_of_no_time_is_told_in_one_sentence(cli: Cli) -> None:
    nothing = cli.any("alert", "silence", "--for", "5m", "--reason", "r")
    assert nothing.code == 2 and "--queue PATTERN" in nothing.err
    no_time = cli.any("alert", "silence", "--queue", "*", "--for", "0", "--reason", "r")
    assert no_time.code == 1 and no_time.err.count("/ends_at") == 1 and "future" in no_time.err
    too_long = cli.any("alert", "silence", "--queue", "*", "--for", "400d", "--reason", "r")
    assert too_long.code == 1 and too_long.err.count("/ends_at") == 1 and "at most a year" in too_long.err


def test_rules_of_a_file_are_made_once_and_changed_when_told_to(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    rules = [
        {"name": "deep", "kind": "depth", "queue": "a", "limit": 5000, "for_ms": 300_000, "note": "unusual"},
        {"name": "grows", "kind": "growth", "queue": "a", "limit": 0.5, "window_ms": 300_000},
        {"name": "works", "kind": "slo_availability", "objective": 99.9},
    ]

    def write(*given: object) -> str:
        file.write_text(json.dumps({"version": 1, "rules": given}))
        return str(file)

    wrong = cli.any("alert", "import", write(rules[0], {**rules[1], "limit": None}))
    assert wrong.code == 2 and '/rules/1: rule "grows"' in wrong.err and "deep" not in cli("alert", "rules").out
    assert "deep: would be made" in cli("alert", "import", "--dry-run", write(*rules)).out
    receiver = json.loads(cli("alert", "add-receiver", "log", "--json").out)["id"]
    made = cli("alert", "import", str(file), "--receiver", receiver, "--json").json()["items"]
    assert [one["result"] for one in made] == ["created"] * 3
    again = cli("alert", "import", str(file), "--json").json()["items"]
    assert [(one["result"], one["id"]) for one in again] == [("same", one["id"]) for one in made]
    changed = write({**rules[0], "limit": 70}, rules[1], {**rules[2], "objective": 99})
    differs = cli.any("alert", "import", changed)
    assert differs.code == 1 and "limit: 5000.0 → 70" in differs.out and "--update changes them" in differs.err
    cli("alert", "import", "--update", changed)
    there = {one["name"]: one for one in json.loads(cli("alert", "rules", "--json").out)["items"]}
    deep = there["deep"]
    assert (deep["limit"], deep["clear_at"], deep["for_ms"], deep["receivers"]) == (70, 63, 300_000, [receiver])
    assert there["works"]["objective"] == 99
    cli("alert", "import", "--update", write({"name": "grows", "kind": "depth", "limit": 7}))
    (grows,) = (one for one in json.loads(cli("alert", "rules", "--json").out)["items"] if one["name"] == "grows")
    assert (grows["kind"], grows["limit"], grows["queue"]) == ("depth", 7, "a")
    for one in made:
        cli("alert", "remove", one["id"], "--yes")


def test_a_tenant_scrapes_its_own_queues_only(cli: Cli) -> None:
    server = cli.server
    cli("queue", "create", "own-secret")
    with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
        http.put("/v1/tenants/acme", json={}).raise_for_status()
        body = {"name": "k", "tenant": "acme", "scopes": ["admin"]}
        key = http.post("/v1/keys", json=body).raise_for_status().json()["key"]
        whole = http.get("/v1/metrics").raise_for_status().text
    with httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, trust_env=False) as acme:
        acme.put("/v1/queues/theirs", json={}).raise_for_status()
        text = acme.get("/v1/metrics").raise_for_status().text
        assert acme.get("/v1/metrics", params={"tenant": "default"}).status_code == 404
    assert 'queue="own-secret"' in whole and 'queue="theirs"' in text
    assert "own-secret" not in text and 'tenant="default"' not in text and "process_" not in text

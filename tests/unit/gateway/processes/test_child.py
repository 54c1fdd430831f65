"""What a child is told arrives as it was meant, with every kind of setting in it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.config.load import load_settings
from gateway.identity.authentication import NEVER_MS, Principal
from gateway.identity.authorization import compile_scopes
from gateway.processes.child import Said, Spec, packed, said
from gateway.processes.tickets import _packed, _principal

SETTINGS = """
gateways = 3
resume_ms = 7
[http]
allowed_origins = ["https://shop.example"]
[[queues.auto_create]]
pattern = "auto.*"
config = {kind = "stream", retention_ms = 1000}
[[throttling.rules]]
name = "slow"
per = ["tenant", "principal"]
quota = 5
"""


def test_settings_arrive_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "pushq.toml"
    file.write_text(SETTINGS)
    settings = load_settings({}, {"PUSHQ_REDIS__URL": "redis://:secret@localhost:1/0"}, file).settings
    spec = Spec(2, 3, settings, 7)
    line = packed(spec)
    assert line.count(b"\n") == 1
    told = msgspec.json.decode(line, type=Spec)
    assert told == spec


def test_a_word_of_a_child_is_one_line() -> None:
    word = Said(failed='the folder "a\nb" is in use')
    assert said(msgspec.json.encode(word)) == word
    assert b"\n" not in msgspec.json.encode(word)


def test_a_ticket_opens_elsewhere_what_it_opened_here() -> None:
    access = compile_scopes(["consume:*", "publish:a.*"]).narrowed(["consume:a.*"]).narrowed(["consume:*.b"])
    made = Principal("k1", "t", "key", access, NEVER_MS, b"\x00\xff" * 16)
    found = _principal(msgspec.msgpack.decode(msgspec.msgpack.encode(_packed(made)), type=type(_packed(made))))
    assert (found.id, found.tenant, found.name, found.secret_sha256) == ("k1", "t", "key", made.secret_sha256)
    for queue in ("a.b", "a.c", "x.b", "b"):
        assert found.access.may("consume", queue) == (queue == "a.b")
        assert not found.access.may("publish", queue)


def test_a_ticket_never_becomes_an_administrators() -> None:
    admin = compile_scopes(["admin", "operator"])
    for access in (admin, admin.narrowed(["view:*"]), compile_scopes(["view:*"]).narrowed(["admin"])):
        made = Principal("k1", "t", "key", access, NEVER_MS, b"")
        found = _principal(_packed(made)).access
        assert (found.is_admin, found.is_operator) == (access.is_admin, access.is_operator)

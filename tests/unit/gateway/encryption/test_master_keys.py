"""Master keys: where they come from, and what they refuse to open."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from backend_store.client import DataKey
from backend_store.model import Unavailable
from gateway.admission.dependency_guard import Guard
from gateway.config.settings import Encryption
from gateway.encryption.master_keys import (
    MASTER_FILE,
    CommandMasters,
    Context,
    FileMasters,
    LocalMasters,
    MasterError,
    Masters,
    master_id,
    new_master_text,
    open_masters,
    parse_masters,
)

ONE, OTHER, SECRET = b"1" * 32, b"2" * 32, b"s" * 32
CONTEXT = Context("default", 7, 3)

HOOK = """
import base64, json, sys
asked = json.load(sys.stdin)
mask = sum(asked["master"].encode()) % 256
def turned(text):
    return base64.b64encode(bytes(b ^ mask for b in base64.b64decode(text))).decode()
field = "plaintext" if asked["op"] == "wrap" else "wrapped"
print(json.dumps({"keys": [turned(key[field]) for key in asked["keys"]]}))
"""


def text_of(*keys: bytes) -> str:
    return "".join(b64encode(key).decode() + "\n" for key in keys)


async def wrapped(masters: Masters, context: Context = CONTEXT) -> DataKey:
    (one,) = await masters.wrap([(context, SECRET)])
    return DataKey(context.key_id, context.tenant, context.uid, one.master, one.data, 0, 0)


@pytest.mark.anyio
async def test_a_wrapped_key_opens_only_as_the_key_that_it_is() -> None:
    masters = LocalMasters([ONE], "memory")
    key = await wrapped(masters)
    assert SECRET not in key.wrapped and await masters.unwrap([key]) == [SECRET]
    for other in ({"tenant": "other"}, {"uid": 8}, {"id": 4}, {"wrapped": key.wrapped[:-1] + b"x"}):
        changed = DataKey(**{**{name: getattr(key, name) for name in key.__struct_fields__}, **other})  # type: ignore[arg-type]
        with pytest.raises(MasterError, match="its record was altered; restore the folder from a"):
            await masters.unwrap([changed])


@pytest.mark.anyio
async def test_the_first_key_wraps_and_the_others_open_what_they_wrapped() -> None:
    old = await wrapped(LocalMasters([ONE], "memory"))
    both = LocalMasters([OTHER, ONE], "memory")
    assert both.active == master_id(OTHER) == (await wrapped(both)).master
    assert await both.unwrap([old]) == [SECRET]
    with pytest.raises(MasterError, match=f"encrypted with the master key {master_id(ONE)}"):
        await LocalMasters([OTHER], "memory").unwrap([old])


@pytest.mark.parametrize("line", [b64encode(ONE).decode(), ONE.hex(), f"# a note\n\n{ONE.hex()}\n"])
def test_a_master_key_is_base64_or_hexadecimal(line: str) -> None:
    assert parse_masters(line, "there") == [ONE]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no master key; create one of 32 bytes as base64:"),
        ("# only a note", "has no master key; create one of 32 bytes as base64:"),
        ("abc", "has a line that is not a key of 32 bytes as base64 or"),
        (b64encode(b"short").decode(), "has a line that is not a key of 32 bytes as base64 or"),
        (text_of(*([ONE] * 17)), "17 master keys"),
    ],
)
def test_what_is_no_master_key_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(MasterError, match=why):
        parse_masters(text, "there")


def test_the_first_start_makes_a_key_that_only_its_owner_may_read(tmp_path: Path) -> None:
    masters = opened(Encryption(), tmp_path, is_new=True)
    file = tmp_path / MASTER_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert masters.active == master_id(parse_masters(file.read_text(), "file")[0])
    assert opened(Encryption(), tmp_path, is_new=True).active == masters.active


def test_a_missing_key_is_never_made_anew_once_it_has_wrapped_something(tmp_path: Path) -> None:
    with pytest.raises(MasterError, match="is missing"):
        opened(Encryption(), tmp_path, is_new=False)
    assert not (tmp_path / MASTER_FILE).exists()


def test_the_environment_has_the_key_or_names_its_file(tmp_path: Path) -> None:
    settings = Encryption(master="environment")
    assert opened(settings, tmp_path, {"PUSHQ_MASTER_KEY": text_of(ONE)}).active == master_id(ONE)
    (tmp_path / "there").write_text(text_of(OTHER))
    assert opened(settings, tmp_path, {"PUSHQ_MASTER_KEY_FILE": str(tmp_path / "there")}).active == master_id(OTHER)
    with pytest.raises(MasterError, match="set PUSHQ_MASTER_KEY or PUSHQ_MASTER_KEY_FILE"):
        opened(settings, tmp_path)
    assert not (tmp_path / MASTER_FILE).exists()


def test_another_key_comes_first_in_the_file_and_the_old_one_goes_when_told(tmp_path: Path) -> None:
    file = tmp_path / MASTER_FILE
    file.write_text(text_of(ONE))
    masters = FileMasters(file)
    masters.put_first(OTHER)
    assert masters.active == master_id(OTHER) and parse_masters(file.read_text(), "file") == [OTHER, ONE]
    masters.put_first(OTHER)
    assert parse_masters(file.read_text(), "file") == [OTHER, ONE]
    masters.keep_active()
    assert file.read_text() == text_of(OTHER) and file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [MASTER_FILE]


def test_new_master_keys_differ() -> None:
    assert new_master_text() != new_master_text() and parse_masters(new_master_text(), "new")


# ------------------------------------------------------------------------------------------------------ command


def command(program: str, *, timeout_ms: int = 5_000, key: str = "alias/one") -> CommandMasters:
    argv = (sys.executable, "-c", program)
    settings = Encryption(master="command", command=argv, command_key=key, command_timeout_ms=timeout_ms)
    return CommandMasters(settings, Guard("master-key"))


@pytest.mark.anyio
async def test_a_command_wraps_and_unwraps_several_keys_at_once() -> None:
    masters = command(HOOK)
    contexts = [Context("default", 7, number) for number in range(3)]
    rows = await masters.wrap([(context, bytes([n]) * 32) for n, context in enumerate(contexts)])
    assert {row.master for row in rows} == {"alias/one"}
    keys = [
        DataKey(c.key_id, c.tenant, c.uid, row.master, row.data, 0, 0) for c, row in zip(contexts, rows, strict=True)
    ]
    assert await command(HOOK, key="alias/two").unwrap(keys[::-1]) == [bytes([n]) * 32 for n in (2, 1, 0)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("program", "timeout_ms", "why"),
    [
        ("import sys; sys.exit('no such key')", 60_000, "failed with exit code 1: no such key"),
        ("import time; time.sleep(300)", 300, "did not answer within 0.3 s"),
    ],
)
async def test_a_command_that_fails_is_away(program: str, timeout_ms: int, why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        await wrapped(command(program, timeout_ms=timeout_ms))


@pytest.mark.anyio
@pytest.mark.parametrize("answer", ["", "{}", '{"keys": []}', '{"keys": ["?"]}', '{"keys": [1]}'])
async def test_a_command_that_answers_nonsense_is_an_error_that_names_it(answer: str) -> None:
    with pytest.raises(MasterError, match="returned"):
        await wrapped(command(f"print({answer!r})"))


@pytest.mark.anyio
async def test_what_a_command_unwraps_must_be_a_data_key() -> None:
    key = DataKey(1, "default", 1, "alias/one", b"short", 0, 0)
    with pytest.raises(MasterError, match="returned something other than data keys for"):
        await command(HOOK).unwrap([key])


@pytest.mark.anyio
async def test_a_command_never_sees_the_master_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHQ_MASTER_KEY", text_of(ONE))
    with pytest.raises(Unavailable, match="none there"):
        await wrapped(command("import os, sys; sys.exit(os.environ.get('PUSHQ_MASTER_KEY', 'none there'))"))


def opened(
    settings: Encryption, directory: Path, environ: dict[str, str] | None = None, *, is_new: bool = False
) -> Masters:
    guard = Guard("master-key")
    return open_masters(settings, directory, environ or {}, guard, is_new=is_new)

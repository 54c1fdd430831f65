"""Who provides servers: real programs and a real web service, what they are told, and what may come of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from backend_store.core.outer.managing import ProvisionCall
from backend_store.outer.manager import ProvisionFailed
from gateway.clusters.provisioner import Provide, provisioner_of
from gateway.config.settings import ManagerSettings
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

CALL = ProvisionCall(17, "us", 4, 6, "83% used for 61 s", 1_769_860_800_000)
TOLD = {
    "version": 1,
    "call": 17,
    "cluster": "us",
    "action": "add",
    "nodes": 4,
    "wanted": 6,
    "reason": "83% used for 61 s",
    "at": "2026-01-31T12:00:00.000Z",
}


def program(folder: Path, text: str, *arguments: str) -> Provide:
    file = folder / "provision"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o700)
    found = provisioner_of(ManagerSettings(provisioner=" ".join((str(file), *arguments))))
    assert found is not None
    return found


async def test_a_program_reads_what_is_wanted_and_is_done_when_it_ends_well(tmp_path: Path) -> None:
    provide = program(tmp_path, f'cat > {tmp_path}/told; echo "$1" > {tmp_path}/argument', "'two words'")
    assert await provide(CALL) == "provision succeeded"
    assert json.loads((tmp_path / "told").read_text()) == TOLD
    assert (tmp_path / "argument").read_text() == "two words\n"


async def test_a_program_may_leave_unread_what_it_is_told(tmp_path: Path) -> None:
    assert await program(tmp_path, "exec <&-; true")(CALL) == "provision succeeded"


async def test_what_a_program_says_is_bounded_and_in_the_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provide = program(tmp_path, "head -c 1000000 /dev/zero | tr '\\0' x; echo the end >&2; exit 3", "s3cret")
    with pytest.raises(ProvisionFailed, match="provision failed with exit code 3") as failed:
        await provide(CALL)
    said = capsys.readouterr().out
    assert "the end" in said and len(said) < 10_000 and "the end" not in str(failed.value)
    assert "s3cret" not in said and "s3cret" not in str(failed.value)


async def test_a_program_that_cannot_be_started_is_named() -> None:
    provide = provisioner_of(ManagerSettings(provisioner="/no/such/program s3cret"))
    assert provide is not None
    with pytest.raises(ProvisionFailed, match=r"^cannot start program: No such file"):
        await provide(CALL)


async def test_a_program_whose_time_is_over_ends_with_all_that_it_started(tmp_path: Path) -> None:
    provide = program(
        tmp_path, f"sleep 600 & echo $! > {tmp_path}/child.new; mv {tmp_path}/child.new {tmp_path}/child; wait"
    )
    await _cancelled(provide, tmp_path / "child")


async def test_what_a_program_left_behind_ends_with_its_time_too(tmp_path: Path) -> None:
    """The program has ended, and what it started holds its output open."""
    provide = program(
        tmp_path, f"sleep 600 & echo $! > {tmp_path}/child.new; mv {tmp_path}/child.new {tmp_path}/child; exit 0"
    )
    await _cancelled(provide, tmp_path / "child")


@pytest.mark.parametrize("run", ["exec yes", "trap '' TERM; yes & while :; do sleep 1; done"])
async def test_a_program_that_writes_without_end_is_over_when_its_time_is(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for longer than it takes to end it."""
    monkeypatch.setattr("gateway.clusters.provisioner.PROVISIONER_END_SECONDS", 0.2 if "trap" in run else 600)
    provide = program(tmp_path, f"echo $$ > {tmp_path}/own.new; mv {tmp_path}/own.new {tmp_path}/own; {run}")
    async with asyncio.timeout(PATIENCE_S):
        await _cancelled(provide, tmp_path / "own")


async def test_nothing_stays_open_of_a_program_that_left_somebody_behind(tmp_path: Path) -> None:
    provide = program(
        tmp_path, f"setsid sleep 600 & echo $! > {tmp_path}/child.new; mv {tmp_path}/child.new {tmp_path}/child; exit 0"
    )
    before = len(os.listdir("/proc/self/fd"))
    try:
        task = asyncio.ensure_future(provide(CALL))
        await eventually((tmp_path / "child").exists, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: len(os.listdir("/proc/self/fd")) == before, "its pipe is closed")
    finally:
        with suppress(ProcessLookupError):
            os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


async def _cancelled(provide: Provide, child: Path) -> None:
    task = asyncio.ensure_future(provide(CALL))
    await eventually(child.exists, "it runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not _lives(int(child.read_text())), "what it started has ended")


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_a_program_does_not_get_the_settings_of_the_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUSHQ_REDIS__URL", "redis://:s3cret@127.0.0.1/0")
    monkeypatch.setenv("HOME_OF_SERVERS", "here")
    await program(tmp_path, f"env > {tmp_path}/env")(CALL)
    found = (tmp_path / "env").read_text()
    assert "HOME_OF_SERVERS=here" in found and "s3cret" not in found


@asynccontextmanager
async def service(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A web service that answers its requests with these, and then no more. Its address, and what it was sent."""
    asked: list[bytes] = []
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        asked.append(head + await reader.readexactly(length))
        if left:
            writer.write(left.pop(0))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook/s3cret", asked


async def test_a_web_service_is_sent_the_same_with_its_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    async with service(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n") as (url, asked):
        provide = provisioner_of(ManagerSettings(provisioner=url, provisioner_token_file=str(tmp_path / "token")))
        assert provide is not None and await provide(CALL) == "127.0.0.1 returned 202"
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook/s3cret HTTP/1.1\r\n") and json.loads(body) == TOLD
    assert b"authorization: bearer t0ken" in head.lower()


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", "returned 503"),
        (b"HTTP/1.1 307 There\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "returned 307"),
        (b"", "is not responding"),
    ],
)
async def test_a_web_service_that_does_not_say_yes_has_failed(answer: bytes, what: str) -> None:
    async with service(answer) as (url, asked):
        provide = provisioner_of(ManagerSettings(provisioner=url))
        assert provide is not None
        with pytest.raises(ProvisionFailed, match=what) as failed:
            await provide(CALL)
    assert "s3cret" not in str(failed.value) and len(asked) == 1, "it is asked once"


async def test_a_token_that_cannot_be_read_is_sent_nowhere(tmp_path: Path) -> None:
    async with service() as (url, asked):
        provide = provisioner_of(ManagerSettings(provisioner=url, provisioner_token_file=str(tmp_path / "none")))
        assert provide is not None
        with pytest.raises(ProvisionFailed):
            await provide(CALL)
    assert not asked


async def test_a_token_that_is_no_text_for_a_header_is_sent_nowhere_and_not_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("s3cr\u00e9t")
    async with service() as (url, asked):
        provide = provisioner_of(ManagerSettings(provisioner=url, provisioner_token_file=str(tmp_path / "token")))
        assert provide is not None
        with pytest.raises(ProvisionFailed, match="UnicodeEncodeError"):
            await provide(CALL)
    assert not asked and "s3cr" not in "".join(capsys.readouterr())


def test_without_one_nobody_provides() -> None:
    assert provisioner_of(ManagerSettings()) is None

"""Calls the operator's provisioner when a cluster shall grow or shrink: a program or a web service. Both get JSON:

    {"version": 1, "call": 17, "cluster": "us", "action": "add", "nodes": 4, "wanted": 6,
     "reason": "83% used for 61 s", "at": "2026-01-31T12:00:00.000Z"}

`wanted` is an absolute number, so that a repeated call does no harm. Addresses and arguments may contain secrets, so
the log has only the program's or the host's name, and what the program wrote.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import msgspec
import structlog

from backend_store.client import timestamp
from backend_store.core.outer.managing import ProvisionCall
from backend_store.outer.manager import ProvisionFailed
from gateway.config.load import ENV_OF_CLIENTS, ENV_PREFIX
from gateway.config.settings import ManagerSettings
from gateway.limits import PROVISIONER_END_SECONDS, PROVISIONER_OUTPUT_BYTES_MAX
from gateway.version import VERSION

log = structlog.get_logger("pushq.manager")

Provide = Callable[[ProvisionCall], Awaitable[str]]


def provisioner_of(settings: ManagerSettings) -> Provide | None:
    """The configured provisioner; None without one."""
    text = settings.provisioner
    if not text:
        return None
    if "://" in text.split(maxsplit=1)[0]:
        return Webhook(text, settings.provisioner_token_file)
    return Command(shlex.split(text))


def body_of(call: ProvisionCall) -> bytes:
    return msgspec.json.encode(
        {
            "version": 1,
            "call": call.number,
            "cluster": call.cluster,
            "action": "add" if call.wanted > call.nodes else "remove",
            "nodes": call.nodes,
            "wanted": call.wanted,
            "reason": call.reason,
            "at": timestamp(call.begun_ms),
        }
    )


class Command:
    """A program: gets the JSON on its stdin, and succeeds by exit code 0. It is ended if the call is cancelled."""

    def __init__(self, argv: list[str]) -> None:
        self._argv = argv
        self._name = Path(argv[0]).name

    async def __call__(self, call: ProvisionCall) -> str:
        async with _output() as (reader, writing):
            starting = asyncio.create_task(self._start(writing))
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # Cancelled during its start, the loop would kill the program alone and leave its children running.
                await _end(await starting)
                raise
            finally:
                os.close(writing)
            try:
                said = await _talk(process, body_of(call), reader)
                code = await process.wait()
            except BaseException:
                await _end(process)
                raise
        log.info("provisioner exited", cluster=call.cluster, call=call.number, program=self._name, code=code, said=said)
        if code:
            raise ProvisionFailed(f"{self._name} failed with exit code {code}; see the manager's log for its output")
        return f"{self._name} succeeded"

    async def _start(self, output: int) -> asyncio.subprocess.Process:
        """Starts the program in a session of its own, writing to `output`. Raises `ProvisionFailed`."""
        try:
            return await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise ProvisionFailed(f"cannot start {self._name}: {error.strerror}") from None


@asynccontextmanager
async def _output() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A pipe: its reader, and the descriptor of its write end, which the caller closes.

    asyncio's own pipe would hide the program's exit while it is full, and stay open as long as any process has its
    write end.
    """
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
    )
    try:
        yield reader, writing
    finally:
        transport.close()


async def _talk(process: asyncio.subprocess.Process, body: bytes, output: asyncio.StreamReader) -> str:
    """Sends the JSON, and returns the end of what the program wrote."""
    assert process.stdin is not None
    with suppress(OSError):  # it need not read it
        process.stdin.write(body)
        await process.stdin.drain()
    process.stdin.close()
    said = b""
    while part := await output.read(PROVISIONER_OUTPUT_BYTES_MAX):
        said = (said + part)[-PROVISIONER_OUTPUT_BYTES_MAX:]
    return said.decode(errors="replace").strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the program and its children, even if it has ended and they have not: SIGTERM first, then SIGKILL."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), PROVISIONER_END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _environment() -> dict[str, str]:
    """The environment without this process's settings, as some contain passwords."""
    return {
        name: value for name, value in os.environ.items() if name in ENV_OF_CLIENTS or not name.startswith(ENV_PREFIX)
    }


class Webhook:
    """A web service: gets the JSON as a POST, and succeeds by answering 2xx."""

    def __init__(self, url: str, token_file: str) -> None:
        self._url = url
        self._token_file = token_file
        self._host = urlsplit(url).hostname or ""

    async def __call__(self, call: ProvisionCall) -> str:
        try:
            status = await self._post(body_of(call))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            log.warning("provisioner not responding", cluster=call.cluster, call=call.number, host=self._host)
            raise ProvisionFailed(f"{self._host} is not responding: {type(error).__name__}") from None
        log.info("provisioner responded", cluster=call.cluster, call=call.number, host=self._host, status=status)
        if not 200 <= status < 300:
            raise ProvisionFailed(f"{self._host} returned {status}")
        return f"{self._host} returned {status}"

    async def _post(self, body: bytes) -> int:
        headers = {"content-type": "application/json", "user-agent": f"pushq/{VERSION}"}
        if self._token_file:
            headers["authorization"] = f"Bearer {Path(self._token_file).read_text().strip()}"
        async with (
            httpx2.AsyncClient(
                verify=ssl.create_default_context(), trust_env=False, follow_redirects=False, timeout=None
            ) as client,
            client.stream("POST", self._url, content=body, headers=headers) as answer,
        ):
            return int(answer.status_code)

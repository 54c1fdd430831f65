"""`pushq dev-cluster demo`: runs the cluster, its stream and its page until a signal ends all of them."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import uvicorn

from gateway.cluster_demo.app import Demo, create_demo_app
from gateway.cluster_demo.keeper import CANNOT_START, Keeper
from gateway.cluster_demo.stream import Stream
from gateway.cluster_demo.tally import Tally
from gateway.config.addresses import Address
from gateway.dev_cluster import running
from gateway.limits import LISTEN_BACKLOG
from gateway.roles.errors import CannotStart

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """Leaves signal handling to this module."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve_demo(folder: Path, address: Address, say: Callable[[str], None], announce: Callable[[str], None]) -> None:
    """Starts the parts of the cluster in `folder` that are not running, serves, and stops all. Raises `CannotStart`."""
    if not address.is_loopback:
        raise CannotStart(
            f"the demo kills processes on request, so it only listens on this machine, not on {address.host}"
        )
    folder = folder.absolute()
    with _bound(address) as sock:
        signal.signal(signal.SIGTERM, _leave)
        try:
            state = running.up(folder, say)
            key = running.key_file(folder).read_text().strip()
            asyncio.run(_serve(folder, f"http://{state.public.address}", key, sock, announce))
        except CANNOT_START as error:
            raise CannotStart(str(error)) from error
        finally:
            # A second signal must not leave a part of the cluster running.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            running.down(folder, say)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _bound(address: Address) -> socket.socket:
    """Binds before anything is started, so that a port in use is reported at once. Raises `CannotStart`."""
    sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address.host, address.port))
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        taken = (
            f"cannot listen on {address.host}:{address.port}: {error.strerror}; choose another address with --listen"
        )
        raise CannotStart(taken) from None
    return sock


async def _serve(folder: Path, url: str, key: str, sock: socket.socket, announce: Callable[[str], None]) -> None:
    ended = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    tally, token = Tally(), secrets.token_urlsafe(24)
    keeper = Keeper(folder, lambda part: tally.kill(part, time.monotonic()))
    stream = Stream(url, key, tally)
    app = create_demo_app(Demo(keeper, tally, token, url))
    server = _Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", ws="none"))
    host, port = sock.getsockname()[:2]
    # The fragment after # stays in the browser: it appears in no request, and so in no log.
    announce(f"{Address(host, port).url}/#token={token}")
    working = [
        asyncio.create_task(work, name=name)
        for name, work in (("page", server.serve(sockets=[sock])), ("keeper", keeper.run()), ("stream", stream.run()))
    ]
    ending = asyncio.create_task(ended.wait(), name="signals")
    done, _ = await asyncio.wait([*working, ending], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    for task in (*working[1:], ending):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*working, ending, return_exceptions=True)
    for task in done - {ending}:
        task.result()

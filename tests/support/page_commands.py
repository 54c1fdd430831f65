"""Runs the commands of a documentation page as forks of a process that has imported them; see `page_command`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.forked import Forked
from tests.support.page_command import PACKET_BYTES_MAX

CLIENT = Path(__file__).with_name("page_command.py")


@contextmanager
def commands() -> Iterator[str]:
    """The path of the socket for `page_command`; whatever is still running at the end of the block is killed."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        path = f"{folder}/commands"
        listening.bind(path)
        listening.listen()
        threads: list[threading.Thread] = []
        taking = threading.Thread(target=_take, args=(listening, threads), name="commands of a page")
        taking.start()
        try:
            yield path
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            taking.join()
            for thread in threads:
                thread.join()


def _take(listening: socket.socket, threads: list[threading.Thread]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        thread = threading.Thread(target=_run, args=(connection,), name="command of a page")
        threads.append(thread)
        thread.start()


def _run(connection: socket.socket) -> None:
    with connection:
        packet, fds, _, _ = socket.recv_fds(connection, PACKET_BYTES_MAX, 3)
        if not packet:
            return
        try:
            request = json.loads(packet)
            stdin, stdout, stderr = fds
            process = Forked(
                request["argv"],
                cwd=Path(request["cwd"]),
                env=request["env"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        finally:
            for fd in fds:
                os.close(fd)
        either: list[socket.socket | Forked] = [connection, process]
        while process not in select.select(either, [], [])[0]:
            received = connection.recv(PACKET_BYTES_MAX)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, int(received) if received else signal.SIGKILL)  # no data: it is gone
        code = process.wait()
        with suppress(OSError):
            # As in a shell: a process ended by a signal has exit code 128 plus its number.
            connection.send(str(code if code >= 0 else 128 - code).encode())

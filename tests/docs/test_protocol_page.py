"""The frames on the protocol page are what a real server says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.conftest import StartServer
from tests.support.page_commands import CLIENT, commands
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
ANSWER_S_MAX = PATIENCE_S
_STRING_OR_GAP = re.compile(r'("[^"]*"|…)')
QUEUES = (("orders", "work"), ("news", "stream"))


class Player:
    """Plays the page's blocks in order. What stands there with `…` inside a string is learned when the server says it,
    and said by the client from then on.
    """

    def __init__(self, server: PushqServer, folder: Path, commands: str) -> None:
        """`commands`: where `page_command` asks."""
        self._server = server
        self._folder = folder
        self._commands = commands
        self._learned = {'"pushq_…"': json.dumps(server.key)}
        self._socket: ClientConnection | None = None
        self._heard: list[str] = []

    def play(self, line: str) -> None:
        sign, _, text = line.partition(" ")
        match sign, text:
            case "$", command:
                self._run(command)
            case ">", "cut":
                self._wire.socket.close()
            case ">", frame:
                self._say(frame)
            case "<", close if close.startswith("close "):
                assert self._close_code() == int(close.removeprefix("close "))
            case "<", frame:
                self._expect(frame)
            case _:
                raise AssertionError(f"neither command nor frame: {line}")

    def finish(self) -> None:
        assert self._heard == [], "the page leaves out what the server said"
        if self._socket is not None:
            self._socket.close()

    @property
    def _wire(self) -> ClientConnection:
        assert self._socket is not None, "a conversation begins with connect"
        return self._socket

    def _run(self, command: str) -> None:
        env = os.environ | {
            "PUSHQ_URL": self._server.url,
            "PUSHQ_KEY": self._server.key,
            "PUSHQ_PID": str(self._server.pid),
        }
        (self._folder / "pushq-data").exists() or (self._folder / "pushq-data").symlink_to(self._server.data)
        pushq = shlex.join([sys.executable, "-I", "-S", str(CLIENT), self._commands, "gateway"])
        command = f'pushq() {{ {pushq} "$@"; }}; {command}'
        subprocess.run(command, shell=True, cwd=self._folder, env=env, check=True, capture_output=True, timeout=30)

    def _say(self, frame: str) -> None:
        for shown, meant in self._learned.items():
            frame = frame.replace(shown, meant)
        assert "…" not in frame, f"the server has not said yet what stands for … in {frame}"
        if '"type":"connect"' in frame:
            if self._socket is not None:
                self._socket.close()
            self._socket = connect(self._server.ws_url, subprotocols=["pushq.v1.json"], legacy=True)  # type: ignore[list-item]
        self._wire.send(frame)

    def _expect(self, shown: str) -> None:
        said = self._next()
        names = [text for text in _STRING_OR_GAP.findall(shown) if "…" in text and text != "…"]
        pattern = "".join(_as_pattern(part) for part in _STRING_OR_GAP.split(shown))
        match = re.fullmatch(pattern, said)
        assert match is not None, f"the page says\n{shown}\nthe server said\n{said}"
        self._learned |= zip(names, match.groups(), strict=True)

    def _next(self) -> str:
        while not self._heard:
            frames: Any = json.loads(self._wire.recv(timeout=ANSWER_S_MAX))
            for frame in frames if isinstance(frames, list) else [frames]:
                if frame != {"type": "ping"}:
                    self._heard.append(json.dumps(frame, separators=(",", ":"), ensure_ascii=False))
        return self._heard.pop(0)

    def _close_code(self) -> int | None:
        try:
            self._wire.recv(timeout=ANSWER_S_MAX)
        except ConnectionClosed as closed:
            return None if closed.rcvd is None else closed.rcvd.code
        raise AssertionError("the server said something instead of closing")


def _as_pattern(part: str) -> str:
    """`…` stands for anything; inside a string for a part of that string, which is then caught as a whole."""
    if part == "…":
        return ".*"
    before, gap, after = part.partition("…")
    return f'({re.escape(before)}[^"]*{re.escape(after)})' if gap else re.escape(part)


def test_every_exchange_on_the_page_is_real(start_server: StartServer, tmp_path: Path) -> None:
    blocks = re.findall(r"^```frames\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    with commands() as where:
        player = Player(start_server(), tmp_path, where)
        for name, kind in QUEUES:
            player.play(f"$ pushq queue create {name} --kind {kind}")
        for block in blocks:
            for line in block.splitlines():
                player.play(line)
        player.finish()

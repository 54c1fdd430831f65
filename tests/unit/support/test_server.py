"""The harness tells a server that does not start or stop from one that does. Small programs play the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.server import PushqServer, ServerFailed

ANSWERS = """
import http.server, pathlib, sys
flags = sys.argv[2:]
data = pathlib.Path(flags[flags.index("--data") + 1])
data.mkdir(exist_ok=True)
(data / "admin.key").write_text("pushq_id_secret\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
host, port = flags[flags.index("--listen") + 1].split(":")
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""
LEAVES = "print('no room for me'); raise SystemExit(3)"
NEVER_READY = "import time; print('thinking'); time.sleep(60)"
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + ANSWERS


@pytest.fixture
def play(tmp_path: Path) -> Path:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").touch()  # or the installed package of that name would come before it
    return tmp_path / "gateway" / "__main__.py"


def test_server_is_ready_after_start_and_gone_after_kill(play: Path, tmp_path: Path) -> None:
    play.write_text(ANSWERS)
    with PushqServer(tmp_path / "data", tree=tmp_path) as server:
        assert server.is_ready()
        assert server.key == "pushq_id_secret"
        assert server.rss_anon_kib() > 1_000
        server.kill()
        assert not server.is_ready()
        assert server.start().is_ready()


def test_stop_tells_the_exit_code_and_how_long_it_took(play: Path, tmp_path: Path) -> None:
    play.write_text(ANSWERS)
    server = PushqServer(tmp_path / "data", tree=tmp_path).start()
    stopped = server.stop()
    assert stopped.exit_code == -15
    assert stopped.seconds < 5
    assert not server.is_running()


def test_server_that_leaves_at_once_fails_with_its_last_words(play: Path, tmp_path: Path) -> None:
    play.write_text(LEAVES)
    with pytest.raises(ServerFailed, match=r"exit code 3(.|\n)*no room for me"):
        PushqServer(tmp_path / "data", tree=tmp_path).start()


def test_server_that_is_never_ready_fails_and_is_killed(play: Path, tmp_path: Path) -> None:
    play.write_text(NEVER_READY)
    server = PushqServer(tmp_path / "data", tree=tmp_path)
    with pytest.raises(ServerFailed, match=r"not ready after 0\.3 s"):
        server.start(ready_s_max=0.3)
    assert not server.is_running()


def test_server_that_ignores_sigterm_fails_and_is_killed(play: Path, tmp_path: Path) -> None:
    play.write_text(IGNORES_SIGTERM)
    server = PushqServer(tmp_path / "data", tree=tmp_path).start()
    server.terminate()
    with pytest.raises(ServerFailed, match="had not ended"):
        server.wait(seconds_max=0.3)
    assert not server.is_running()

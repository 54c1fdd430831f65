"""A webhook receiver as a separate process: it verifies each signature and records what it receives.

`python -m tests.support.receiver FILE SECRET_FILE` prints its port, and appends a line of JSON to FILE for each
request. The secret may be written later: it is read with each request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def is_genuine(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Follows the Standard Webhooks specification, with no knowledge beyond that and the secret."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = headers["webhook-id"].encode() + b"." + headers["webhook-timestamp"].encode() + b"." + body
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    is_fresh = abs(time.time() - int(headers["webhook-timestamp"])) < 300
    return is_fresh and expected in headers["webhook-signature"].split(" ")


def serve(file: Path, secret_file: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            genuine = is_genuine(secret_file.read_text().strip(), headers, body)
            with file.open("a") as out:
                line = {"id": headers["webhook-id"], "genuine": genuine, "at": time.time(), "body": json.loads(body)}
                out.write(json.dumps(line) + "\n")
            self.send_response(204 if genuine else 401)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


class Receiver:
    """The process, and the requests it received."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "told.jsonl"
        self._secret = folder / "secret"
        self._secret.write_text("")
        command = [sys.executable, "-m", "tests.support.receiver", str(self._file), str(self._secret)]
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/hooks"

    def knows(self, secret: str) -> None:
        self._secret.write_text(secret)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))

"""JWT issuers for tests: generated keys, tokens signed with them, and a real HTTP server for the key set."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

SECRET = "a secret of thirty-two bytes, or more"
_shared: dict[str, Any] = {}


class SigningKey:
    """A named private key, and its public part."""

    def __init__(self, algorithm: str, key_id: str) -> None:
        self.algorithm = algorithm
        self.id = key_id
        if algorithm == "RS256":
            # Generating this one is slow, and tests do not care which one it is.
            self.private: Any = _shared.setdefault(key_id, rsa.generate_private_key(65537, 2048))
        else:
            self.private = (
                ec.generate_private_key(ec.SECP256R1())
                if algorithm == "ES256"
                else ed25519.Ed25519PrivateKey.generate()
            )

    @property
    def pem(self) -> bytes:
        """The public key."""
        encoded: bytes = self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return encoded

    @property
    def jwk(self) -> dict[str, Any]:
        maker: Any = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}[self.algorithm]
        public = maker.to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "kid": self.id, "alg": self.algorithm, "use": "sig"}

    def sign(self, claims: Mapping[str, Any], **headers: Any) -> str:
        return jwt.encode(dict(claims), self.private, self.algorithm, {"kid": self.id, **headers})


def claims(issuer: str, scope: str, *, lives_s: float = 300, **more: Any) -> dict[str, Any]:
    """The claims of a valid token; None in `more` removes a claim."""
    now_s = int(time.time())
    given = {"iss": issuer, "sub": "alice", "aud": "pushq", "exp": now_s + lives_s, "iat": now_s, "scope": scope}
    return {name: value for name, value in (given | more).items() if value is not None}


def with_secret(given: Mapping[str, Any], secret: str | bytes = SECRET, **headers: Any) -> str:
    return jwt.encode(dict(given), secret, "HS256", headers)


def raw_token(header: Any, given: Any, signature: bytes = b"") -> str:
    """A token of three arbitrary parts, which no library would produce."""
    parts = [json.dumps(header).encode(), json.dumps(given).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


class KeyServer:
    """Publishes a key set on a local port; its response may be changed at any time."""

    def __init__(self, port: int = 0) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                time.sleep(outer.delay_s)
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing."""

        self.asked = 0
        self.status = 200
        self.delay_s = 0.0
        self.headers: dict[str, str] = {}
        self.body = b"{}"
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/keys.json"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def publish(self, keys: Sequence[SigningKey | dict[str, Any]]) -> None:
        entries = [key.jwk if isinstance(key, SigningKey) else key for key in keys]
        self.body = json.dumps({"keys": entries}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def key_server(*keys: SigningKey) -> Iterator[KeyServer]:
    server = KeyServer()
    try:
        server.publish(keys)
        yield server
    finally:
        server.close()


def issuers_env(*entries: Mapping[str, Any], **jwt_settings: Any) -> dict[str, str]:
    """The environment of a server that accepts tokens of these issuers."""
    settings = {f"PUSHQ_AUTH__JWT__{name.upper()}": str(value) for name, value in jwt_settings.items()}
    return {"PUSHQ_AUTH__JWT__ISSUERS": json.dumps(entries), **settings}

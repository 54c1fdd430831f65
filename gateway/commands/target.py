"""Which server a command talks to, with which key: the options `--url`, `--key-file`, `--data` and `--ca`."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from gateway.commands.base import KEY_ORIGIN, CommonOption
from gateway.commands.exits import Exit, Failure

if TYPE_CHECKING:
    import ssl

    from push.client import Admin, Limits, Pushq, SessionEvent
    from push.client.model import TransportName

DATA_DEFAULT = Path("./pushq-data")
OPEN_TIMEOUT_S = 2.0
"""A person waits at the other end: a server that is being restarted gets this long, an absent one no longer."""
OPEN_PATIENCE_S = 15.0
"""One that is there and asks to come back later gets this long; where it asks for more, its answer is told at once."""


@dataclass(frozen=True)
class Target:
    """The server and the key, as the options and the environment name them."""

    url: str | None
    key_file: Path | None
    data: Path
    ca: Path | None = None
    """Whose certificates to trust for https://; None leaves it to the environment and the system."""

    @property
    def base_url(self) -> str:
        """The server's URL: `--url`, else `PUSHQ_URL`, else the local default."""
        from push.client.discover import find_url

        try:
            found = find_url(self.url)
            parts = urlsplit(found)
            is_whole = bool(parts.hostname) and parts.port != 0 and " " not in found
        except ValueError as error:
            raise click.UsageError(f"the server's URL: {error}") from None
        if not is_whole:
            raise click.UsageError(f"the server's URL is {found!r}; it must name a host, as http://127.0.0.1:8080 does")
        return found

    @property
    def socket(self) -> Path:
        """Where local administration goes."""
        return self.data / "admin.sock"

    def key(self) -> str:
        """`--key-file`, else `PUSHQ_KEY`, else the first key in the data folder; noted for a 401's sentence."""
        token, origin = self._find_key()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise Failure(
                f"{origin} holds no key: a key is one word of plain letters, digits and signs", exit=Exit.AUTH
            )
        if (context := click.get_current_context(silent=True)) is not None:
            context.meta[KEY_ORIGIN] = origin
        return token

    def tls(self) -> ssl.SSLContext | None:
        """How https:// is spoken: `--ca`, else the environment; None for the system's authorities."""
        from push.client.discover import find_tls

        try:
            return find_tls(ca_file=self.ca)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def admin(self) -> Admin:
        """The HTTP API."""
        from push.client.admin import Admin

        return Admin(self.base_url, self.key(), tls=self.tls())

    def local_admin(self) -> Admin:
        """The same API over the data folder's socket, which allows what HTTP may not."""
        from push.client.admin import Admin

        if not self.socket.is_socket():
            raise Failure(
                f"no server has its socket at {self.socket}",
                exit=Exit.UNAVAILABLE,
                lines=["run this on the server's machine, with --data its folder"],
            )
        return Admin(key=self.key(), unix_socket=self.socket)

    def connect(
        self,
        *,
        transport: TransportName = "ws",
        limits: Limits | None = None,
        on_event: Callable[[SessionEvent], None] | None = None,
    ) -> Pushq:
        """A session that publishes and subscribes; what happens to it is told on stderr, or to `on_event`."""
        from gateway.commands.session_events import Teller
        from push.client import Limits, connect

        chosen = limits or Limits(open_timeout_s=OPEN_TIMEOUT_S, open_patience_s=OPEN_PATIENCE_S)
        # The client's own log lines say the same for programs.
        logging.getLogger("pushq.client").addHandler(logging.NullHandler())
        tell = on_event or Teller()
        return connect(self.base_url, self.key(), transport=transport, on_event=tell, limits=chosen, tls=self.tls())

    def _find_key(self) -> tuple[str, str]:
        if self.key_file is not None:
            return _first_line(self.key_file), str(self.key_file)
        if key := os.environ.get("PUSHQ_KEY", "").strip():
            return key, "PUSHQ_KEY"
        file = self.data / "admin.key"
        if not file.is_file():
            raise Failure(
                f"no key: PUSHQ_KEY is not set and there is no {file}",
                exit=Exit.AUTH,
                lines=["name a key with PUSHQ_KEY or --key-file, or the server's folder with --data"],
            )
        return _first_line(file), str(file)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the four options and gives the command its `target`."""

    @functools.wraps(function)
    def with_target(
        *args: Any, url: str | None, key_file: Path | None, data: Path, ca: Path | None, **kwargs: Any
    ) -> Any:
        return function(*args, target=Target(url, key_file, data, ca), **kwargs)

    return _URL(_KEY_FILE(_DATA(_CA(with_target))))


_URL = click.option(
    "--url", cls=CommonOption, metavar="URL", help="The server.  [default: PUSHQ_URL, else http://127.0.0.1:8080]"
)
_KEY_FILE = click.option(
    "--key-file",
    cls=CommonOption,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the API key.  [default: PUSHQ_KEY, else admin.key in the data folder]",
)
_DATA = click.option(
    "--data",
    cls=CommonOption,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA_DEFAULT,
    help="The data folder of a server on this machine.  [default: ./pushq-data]",
)


_CA = click.option(
    "--ca",
    cls=CommonOption,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Authorities to trust for https://, in place of the system's.  [default: PUSHQ_CA_FILE]",
)


def _first_line(file: Path) -> str:
    try:
        return file.read_text().split("\n", 1)[0].strip()
    except OSError as error:
        raise Failure(f"cannot read the key in {file}: {error.strerror}", exit=Exit.AUTH) from error
    except UnicodeDecodeError:
        return ""

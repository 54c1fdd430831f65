"""The server and key that a command uses: the options `--url`, `--context`, `--key-file`, `--data`, `--ca`."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from gateway.commands.base import KEY_ORIGIN, SERVER_ASKED, URL_ORIGIN, CommonOption
from gateway.commands.exits import Exit, Failure

if TYPE_CHECKING:
    import ssl

    from gateway.commands.contexts import Profile
    from push.client import Admin, Limits, Pushq, SessionEvent
    from push.client.model import TransportName

DATA_DEFAULT = Path("./pushq-data")
OPEN_TIMEOUT_S = 2.0
"""How long to wait for a connection: a restarting server gets this long, an absent one no longer, as a person waits."""
OPEN_PATIENCE_S = 15.0
"""How long to wait for a server that asks to come back later; if it asks for more, its answer is shown at once."""


@dataclass(frozen=True)
class Target:
    """The server and the key, as the options and the environment name them."""

    url: str | None
    key_file: Path | None
    data: Path
    ca: Path | None = None
    """The authorities to trust for https://; None leaves the choice to the context, the environment and the system."""
    context: str | None = None
    is_data_named: bool = False
    """Whether `--data` was given. Then the command is about a server on this machine, and ignores a context in use."""

    @functools.cached_property
    def profile(self) -> tuple[str, Profile] | None:
        """The context in force and its name. None if the URL comes from elsewhere: a context's key is for its own
        server.

        Raises `Failure` if the contexts file cannot be used.
        """
        if self.context is not None and self.url is not None:
            raise click.UsageError("--context and --url are mutually exclusive")
        if self.context is None and (self.url is not None or self.is_data_named or os.environ.get("PUSHQ_URL")):
            return None
        from gateway.commands.contexts import load

        contexts = load()
        of_environment = os.environ.get("PUSHQ_CONTEXT")
        wanted = self.context or of_environment or contexts.current
        if wanted is None:
            return None
        origin = "--context" if self.context else "PUSHQ_CONTEXT" if of_environment else "the current context"
        return wanted, contexts.get(wanted, origin)

    @property
    def is_local(self) -> bool:
        """Is nothing said of a server elsewhere? Then local administration goes over the socket.

        `PUSHQ_URL` is said of this machine's server too, one at another port: it counts where there is no socket.
        """
        if self.url is not None or self.profile is not None:
            return False
        return self.is_data_named or not os.environ.get("PUSHQ_URL") or self.socket.is_socket()

    @property
    def base_url(self) -> str:
        """The server's URL: `--url`, or that of `--context`, else `PUSHQ_URL`, else the context's, else the default."""
        from push.client.discover import find_url, without_secrets

        given, named_by = self._given_url()
        origin = "" if named_by is None else f"; it came from {named_by}"
        try:
            found = find_url(given)
            parts = urlsplit(found)
            is_whole = bool(parts.hostname) and parts.port != 0 and " " not in found
        except ValueError as error:
            why, about = str(error), "the server's URL"
            why = why if why.startswith(about) else f"{about}: {why}"
            raise click.UsageError(f"{why}{origin}") from None
        if not is_whole:
            wrong = f"the server's URL {found!r} has no host: use a URL such as http://127.0.0.1:8080"
            raise click.UsageError(f"{wrong}{origin}")
        if (context := click.get_current_context(silent=True)) is not None:
            context.meta[SERVER_ASKED] = without_secrets(found)
            if named_by is not None:
                context.meta[URL_ORIGIN] = named_by
        return found

    def _given_url(self) -> tuple[str | None, str | None]:
        """The URL, None for the default, and what named it, None for the command line and the default."""
        if self.url:
            return self.url, None
        if self.profile is not None:
            return self.profile[1].url, f'context "{self.profile[0]}"'
        of_environment = os.environ.get("PUSHQ_URL") or None
        return of_environment, None if of_environment is None else "PUSHQ_URL"

    def command(self, line: str) -> str:
        """A command line for a hint, with the context given to this command, so that it addresses the same server."""
        return f"`pushq {line}{f' --context {self.context}' if self.context else ''}`"

    @property
    def socket(self) -> Path:
        """The socket of local administration."""
        return self.data / "admin.sock"

    def tenant(self, named: str | None) -> str | None:
        """The tenant of `--tenant`, else the context's."""
        return named or (self.profile[1].tenant if self.profile else None)

    def key(self) -> str:
        """The key: from `--key-file`, or that of `--context`, else `PUSHQ_KEY`, else the context's, else the first key
        in the data folder. Its origin is recorded for the message of a 401."""
        token, origin = self._found_key
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise Failure(
                f"{origin} has no valid key: a key is one word of letters, digits and punctuation", exit=Exit.AUTH
            )
        if (context := click.get_current_context(silent=True)) is not None:
            context.meta[KEY_ORIGIN] = origin
        return token

    def tls(self) -> ssl.SSLContext | None:
        """The TLS settings from `--ca`, the context and the environment; None means the system's authorities."""
        from push.client.discover import find_tls, tls_context

        profile = self.profile[1] if self.profile else None
        try:
            if profile is None or not (profile.ca_file or profile.cert_file):
                return find_tls(ca_file=self.ca)
            ca = self.ca or self._ranked("PUSHQ_CA_FILE", profile.ca_file)
            return tls_context(ca, self._ranked("PUSHQ_CERT_FILE", profile.cert_file))
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def admin(self) -> Admin:
        """A client of the HTTP API."""
        from push.client.admin import Admin

        return Admin(self.base_url, self.key(), tls=self.tls())

    def local_admin(self) -> Admin:
        """A client of the same API over the data folder's socket, which allows more than HTTP may."""
        from push.client.admin import Admin

        if not self.socket.is_socket():
            raise Failure(
                f"no server socket at {self.socket}",
                exit=Exit.UNAVAILABLE,
                lines=["run this on the server's machine, with --data set to its folder"],
            )
        # A context's key is for its own server; this one is local.
        here = dataclasses.replace(self, context=None, is_data_named=True)
        return Admin(key=here.key(), unix_socket=self.socket)

    def connect(
        self,
        *,
        transport: TransportName = "ws",
        limits: Limits | None = None,
        on_event: Callable[[SessionEvent], None] | None = None,
    ) -> Pushq:
        """A session that publishes and subscribes; its events are printed on stderr, or passed to `on_event`."""
        from gateway.commands.session_events import Teller
        from push.client import Limits, connect

        chosen = limits or Limits(open_timeout_s=OPEN_TIMEOUT_S, open_patience_s=OPEN_PATIENCE_S)
        # The client's own log lines repeat these messages for programs.
        logging.getLogger("pushq.client").addHandler(logging.NullHandler())
        tell = on_event or Teller()
        return connect(self.base_url, self.key(), transport=transport, on_event=tell, limits=chosen, tls=self.tls())

    def _ranked(self, variable: str, of_context: str | None) -> str | None:
        """A file of `--context` takes precedence over the environment, that of a context merely in use does not."""
        of_environment = os.environ.get(variable)
        return of_context or of_environment if self.context is not None else of_environment or of_context

    @functools.cached_property
    def _found_key(self) -> tuple[str, str]:
        """The key and its origin. Cached: a context's command may ask for a passphrase."""
        if self.key_file is not None:
            return _first_line(self.key_file), str(self.key_file)
        if self.context is not None and (found := self._key_of_context()) is not None:
            return found
        if key := os.environ.get("PUSHQ_KEY", "").strip():
            return key, "PUSHQ_KEY"
        if (found := self._key_of_context()) is not None:
            return found
        if self.profile is not None and not self.is_data_named:  # the folder's key is for the server of this machine
            raise Failure(
                f'no API key: context "{self.profile[0]}" has none, and PUSHQ_KEY is not set',
                exit=Exit.AUTH,
                lines=["set --key-file or PUSHQ_KEY, or point --data to the server's folder"],
            )
        return self._key_of_folder()

    def _key_of_context(self) -> tuple[str, str] | None:
        if self.profile is None:
            return None
        from gateway.commands.contexts import key_of

        name, profile = self.profile
        if profile.key_file is not None:
            return _first_line(Path(profile.key_file)), profile.key_file
        return key_of(name, profile)

    def _key_of_folder(self) -> tuple[str, str]:
        file = self.data / "admin.key"
        if not file.is_file():
            raise Failure(
                f"no API key: PUSHQ_KEY is not set and {file} does not exist",
                exit=Exit.AUTH,
                lines=["set PUSHQ_KEY or --key-file, or point --data to the server's folder"],
            )
        return _first_line(file), str(file)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the five options, and passes the command a `target`."""

    @functools.wraps(function)
    def with_target(
        *args: Any,
        url: str | None,
        context: str | None,
        key_file: Path | None,
        data: Path | None,
        ca: Path | None,
        **kwargs: Any,
    ) -> Any:
        target = Target(url, key_file, data or DATA_DEFAULT, ca, context, is_data_named=data is not None)
        return function(*args, target=target, **kwargs)

    return _URL(_CONTEXT(_KEY_FILE(_DATA(_CA(with_target)))))


def _context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from gateway.commands.names import context_names

    return context_names(ctx, param, incomplete)


_URL = click.option(
    "--url", cls=CommonOption, metavar="URL", help="The server's URL.  [default: PUSHQ_URL, else http://127.0.0.1:8080]"
)
_CONTEXT = click.option(
    "--context",
    cls=CommonOption,
    metavar="NAME",
    shell_complete=_context_names,
    help="A context saved with `pushq context add NAME`.  [default: PUSHQ_CONTEXT, else that of `pushq context use`]",
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
    help="The data folder of a server on this machine.  [default: ./pushq-data]",
)


_CA = click.option(
    "--ca",
    cls=CommonOption,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Trusted CA certificates for https://, instead of the system's.  [default: PUSHQ_CA_FILE]",
)


def _first_line(file: Path) -> str:
    try:
        return file.read_text().split("\n", 1)[0].strip()
    except OSError as error:
        raise Failure(f"cannot read the key in {file}: {error.strerror}", exit=Exit.AUTH) from error
    except UnicodeDecodeError:
        return ""

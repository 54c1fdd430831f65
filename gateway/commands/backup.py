"""`pushq backup` and `pushq restore`: copies the store's files while a server runs, and verifies each copy.

Both work on the data folder itself, not through a server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gateway.commands.base import command, json_option
from gateway.commands.exits import Failure
from gateway.commands.output import progress, put_json, size, tell
from gateway.commands.target import DATA_DEFAULT

if TYPE_CHECKING:
    from backend_store.client.backup import Manifest

LOOK_S = 0.2
T = TypeVar("T")
_FOLDER = click.Path(file_okay=False, path_type=Path)


@command("backup")
@click.argument("target", type=_FOLDER)
@click.option(
    "--data",
    metavar="DIR",
    type=_FOLDER,
    default=DATA_DEFAULT,
    help="The data folder to copy; its server may be running.  [default: ./pushq-data]",
)
@click.option(
    "--with-master-key",
    is_flag=True,
    help="Also copy master.key: anyone with access to TARGET can then read everything.",
)
@json_option
def backup(target: Path, data: Path, with_master_key: bool, as_json: bool) -> None:
    """Back up a data folder while its server runs.

    TARGET is a new or empty folder. It receives a consistent snapshot and a manifest that `pushq restore` verifies. The
    file master.key is not included unless you pass --with-master-key, and the manifest lists it then: keep a copy of it
    elsewhere, because messages cannot be read without it.
    """
    from backend_store.client.backup import DATA_FILE, MASTER_KEY_FILE
    from backend_store.client.backup import backup as copy

    with _growing("copying", target / DATA_FILE):
        manifest = _stored(lambda: copy(data, target, with_master_key=with_master_key))
    _report(manifest, as_json, f"backed up {data} to {target}")
    if with_master_key:
        tell(f"{MASTER_KEY_FILE} is in it: anyone with access to {target} can read everything")
    else:
        tell(f"{MASTER_KEY_FILE} is not in it: keep a copy of it elsewhere, because messages cannot be read without it")


@command("restore")
@click.argument("source", type=_FOLDER)
@click.option(
    "--data",
    metavar="DIR",
    type=_FOLDER,
    default=DATA_DEFAULT,
    help="The folder to restore into, new or empty.  [default: ./pushq-data]",
)
@json_option
def restore(source: Path, data: Path, as_json: bool) -> None:
    """Restore a data folder from a backup.

    Everything in SOURCE is verified first. A version older than the one that made the backup refuses it. The restored
    folder gets an identity of its own. It includes API keys but not the file admin.key, and master.key only if SOURCE
    has it. Messages acked after the backup was taken are delivered again.
    """
    from backend_store.client.backup import DATA_FILE, MASTER_KEY_FILE, RESTORING_FOLDER
    from backend_store.client.backup import restore as make

    with _growing("restoring", data / RESTORING_FOLDER / DATA_FILE):
        manifest = _stored(lambda: make(source, data))
    _report(manifest, as_json, f"restored {source} to {data}")
    if not (data / MASTER_KEY_FILE).exists():
        tell(f"copy {MASTER_KEY_FILE} into {data} from your safe copy before you start a server on it")


def _stored(work: Callable[[], T]) -> T:
    from backend_store.client.backup import StorageError

    try:
        return work()
    except StorageError as error:
        raise Failure(str(error), problem={"detail": str(error), "code": error.code}) from error


def _report(manifest: Manifest, as_json: bool, done: str) -> None:
    if as_json:
        import msgspec

        put_json(msgspec.to_builtins(manifest))
    else:
        rows = manifest.rows.get("log", 0)
        tell(f"{done}: {size(manifest.file_bytes)}, {rows} log entries, taken at {manifest.taken_at}")


@contextmanager
def _growing(what: str, file: Path) -> Iterator[None]:
    """A progress bar of the bytes in `file` while another thread or process writes it; the total is not known."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            try:
                advance(file.stat().st_size)
            except FileNotFoundError:
                pass

    with progress(f"{what} (bytes)", None) as advance:
        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

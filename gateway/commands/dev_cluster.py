"""`pushq dev-cluster`: whole clusters on this machine, for development."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.base import group, json_option
from gateway.commands.exits import Exit, Failure
from gateway.commands.figures import WholeRange
from gateway.commands.output import put, put_fields, put_json, put_table, tell
from gateway.dev_cluster.limits import BACKENDS_MAX, BACKENDS_MIN, CALL_BYTES_MAX, CLUSTERS_MAX
from web_console.wording import counted

if TYPE_CHECKING:
    from gateway.config.settings import Model, Replication
    from gateway.dev_cluster.state import State

MODELS: tuple[Model, ...] = ("leader_follower", "independent_hosts")
REPLICATIONS: tuple[Replication, ...] = ("sync", "async")

_directory_option = click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("./pushq-cluster"),
    show_default=True,
    help="The folder for data, certificates, logs and cluster.json.",
)


@group("dev-cluster")
def dev_cluster() -> None:
    """Run whole clusters on this machine, for development.

    This starts etcd, three backends per cluster, two shared gateways and, if installed, HAProxy, all on free ports of
    127.0.0.1. Several clusters also get a manager, which grows and shrinks them.
    """


@dev_cluster.command("up")
@click.option(
    "--clusters",
    type=WholeRange(min=1, max=CLUSTERS_MAX),
    metavar="NUMBER",
    help="Number of new clusters, with three backends each.  [default: 1]",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(MODELS),
    help="The replication model of new clusters. Repeatable, once per cluster.  [default: leader_follower]",
)
@click.option(
    "--replication",
    type=click.Choice(REPLICATIONS),
    help="When a message of new clusters is confirmed, see cluster.replication.  [default: sync]",
)
@_directory_option
@json_option
def up(
    clusters: int | None,
    models: Sequence[Model],
    replication: Replication | None,
    directory: Path,
    as_json: bool,
) -> None:
    """Start the clusters, or any part that is not running, and wait until everything is ready.

    They keep running after this command exits. DIR keeps their data, number, models and replication.
    """
    from gateway.dev_ca import CaError
    from gateway.dev_cluster import running
    from gateway.dev_cluster.layout import MissingProgram
    from gateway.dev_cluster.processes import NotReady
    from gateway.dev_cluster.state import StateError

    try:
        state = running.up(directory, tell, models, clusters, replication)
    except (MissingProgram, CaError, StateError, NotReady, OSError) as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
    if as_json:
        put_json(_report(directory, state))
        return
    put_fields({"url": f"http://{state.public.address}", "key": str(running.key_file(directory))})
    tell(f"stop it with `pushq dev-cluster down --directory {directory}`")


@dev_cluster.command("status")
@_directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show every process of the clusters, and who leads."""
    state = _loaded(directory)
    if state is None:
        raise Failure(f"no cluster in {directory}: start one with `pushq dev-cluster up`", exit=Exit.NOT_FOUND)
    found = _report(directory, state)
    if as_json:
        put_json(found)
        return
    header = ("role", "name", "cluster", "address", "pid", "alive", "leads")
    rows = [
        [
            part["role"],
            part["name"],
            part["cluster"] or "–",
            part["address"],
            part["pid"] or "–",
            "yes" if part["alive"] else "no",
            ",".join(str(one["shard"]) for one in found["leaders"] if one["leader"] == part["name"]) or "–",
        ]
        for part in found["parts"]
    ]
    put_table(header, rows)


@dev_cluster.command("down")
@_directory_option
@json_option
def down(directory: Path, as_json: bool) -> None:
    """Stop the clusters. The folder stays: `up` starts them again with the same data."""
    from gateway.dev_cluster import running

    ended = _do(lambda: running.down(directory, tell))
    if as_json:
        put_json({"ended": ended})
    else:
        put(f"stopped {ended} processes")


@dev_cluster.command("demo")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8080",
    show_default=True,
    help="Address of the page, on loopback.",
)
@_directory_option
def demo(listen: str, directory: Path) -> None:
    """Start the cluster and a page that kills its processes while numbered messages flow through it.

    Killed processes are restarted. SIGTERM or Ctrl-C stops the page and the cluster.
    """
    from gateway.cluster_demo.serving import serve_demo
    from gateway.config.addresses import parse_address
    from gateway.roles.errors import CannotStart

    try:
        address = parse_address(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    try:
        serve_demo(directory, address, tell, lambda url: put(f"demo: {url}"))
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error


@dev_cluster.command("resize")
@click.argument("cluster", metavar="CLUSTER")
@click.argument("wanted", metavar="BACKENDS", type=WholeRange(min=BACKENDS_MIN, max=BACKENDS_MAX))
@_directory_option
@json_option
def resize(cluster: str, wanted: int, directory: Path, as_json: bool) -> None:
    """Add backends to a running cluster, or remove them.

    A new backend receives its share of copies once it has joined. The newest leaves first: its copies are rebuilt
    elsewhere, then its process stops and its data is deleted. With several clusters, the manager may shrink one that is
    nearly idle.
    """
    had = _resized(directory, cluster, wanted)
    if as_json:
        put_json({"cluster": cluster, "had": had, "backends": wanted})
    else:
        put(f"{cluster} has {counted(wanted, 'backend')}")


@dev_cluster.command("provision")
@_directory_option
def provision(directory: Path) -> None:
    """Serve as a manager's provisioner: read its JSON from stdin, and start or stop backends.

    The manager of several clusters calls this as `manager.provisioner`. It uses `version`, `cluster` and `wanted` of
    the JSON. Repeated calls are harmless.
    """
    from gateway.dev_cluster.resizing import ResizeError, call_of

    try:
        call = call_of(sys.stdin.buffer.read(CALL_BYTES_MAX))
    except ResizeError as error:
        raise Failure(str(error)) from None
    _resized(directory, call.cluster, call.wanted)


def _resized(directory: Path, cluster: str, wanted: int) -> int:
    """Returns how many backends it had. Ignores output errors: the manager that called may have been killed."""
    from gateway.dev_ca import CaError
    from gateway.dev_cluster.processes import NotReady
    from gateway.dev_cluster.resizing import ResizeError, resize
    from gateway.dev_cluster.state import StateError

    try:
        return resize(directory, cluster, wanted, _say)
    except (ResizeError, StateError, NotReady, CaError, OSError) as error:
        raise Failure(str(error)) from error


def _say(text: str) -> None:
    with suppress(OSError):
        tell(text)


def _loaded(directory: Path) -> State | None:
    from gateway.dev_cluster.state import load

    found: State | None = _do(lambda: load(directory))
    return found


def _do(work: Callable[[], Any]) -> Any:
    from gateway.dev_cluster.state import StateError

    try:
        return work()
    except (StateError, OSError) as error:
        raise Failure(str(error)) from error


def _report(directory: Path, state: State) -> dict[str, Any]:
    from gateway.dev_cluster import running

    return {
        "directory": str(directory.absolute()),
        "url": f"http://{state.public.address}",
        "key_file": str(running.key_file(directory.absolute())),
        "parts": [
            {
                "role": part.role,
                "name": part.name,
                "cluster": part.cluster if part.role == "backend" else None,
                "address": part.address,
                "pid": part.pid,
                "alive": part.is_alive,
                "log": part.log,
            }
            for part in state.parts
        ],
        "clusters": state.clusters,
        "leaders": running.leaders(state),
    }

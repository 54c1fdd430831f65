"""`pushq dev-cluster`: a whole cluster on this machine, for development."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.base import group, json_option
from gateway.commands.exits import Exit, Failure
from gateway.commands.output import put, put_fields, put_json, put_table, tell

if TYPE_CHECKING:
    from gateway.dev_cluster.state import State
    from gateway.settings import Model

MODELS: tuple[Model, ...] = ("leader_follower", "independent_hosts")

_directory_option = click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("./pushq-cluster"),
    show_default=True,
    help="Its folder: data, certificates, logs and cluster.json.",
)


@group("dev-cluster")
def dev_cluster() -> None:
    """Run a whole cluster on this machine, for development.

    It has etcd, three backends, two gateways and, where it is installed, HAProxy; all on free ports of 127.0.0.1.
    """


@dev_cluster.command("up")
@click.option(
    "--model",
    type=click.Choice(MODELS),
    help="How the backends of a new cluster share its queues.  [default: leader_follower]",
)
@_directory_option
@json_option
def up(model: Model | None, directory: Path, as_json: bool) -> None:
    """Start the cluster, or what of it does not run, and wait until all of it is ready.

    It goes on when this command ends. Its data stay in DIR, and so does its model.
    """
    from gateway.dev_ca import CaError
    from gateway.dev_cluster import running
    from gateway.dev_cluster.layout import MissingProgram
    from gateway.dev_cluster.state import StateError

    try:
        state = running.up(directory, tell, model)
    except (MissingProgram, CaError, StateError, running.NotReady, OSError) as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
    if as_json:
        put_json(_report(directory, state))
        return
    put_fields({"url": f"http://{state.public.address}", "key": str(running.key_file(directory))})
    tell(f"`pushq dev-cluster down --directory {directory}` ends it")


@dev_cluster.command("status")
@_directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show each part of the cluster, and who leads."""
    state = _loaded(directory)
    if state is None:
        raise Failure(f"there is no cluster in {directory}: start one with `pushq dev-cluster up`", exit=Exit.NOT_FOUND)
    found = _report(directory, state)
    if as_json:
        put_json(found)
        return
    header = ("role", "name", "address", "pid", "alive", "leads")
    rows = [
        [
            part["role"],
            part["name"],
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
    """End the cluster. Its folder stays: `up` starts it again with the same data."""
    from gateway.dev_cluster import running

    ended = _do(lambda: running.down(directory, tell))
    if as_json:
        put_json({"ended": ended})
    else:
        put(f"{ended} processes ended")


@dev_cluster.command("demo")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where the page is, on loopback."
)
@_directory_option
def demo(listen: str, directory: Path) -> None:
    """Start the cluster and a page that kills its parts, while numbered messages go through it.

    What is killed is started again. SIGTERM or Ctrl-C ends the page and the cluster.
    """
    from gateway.addresses import parse_address
    from gateway.cannot_start import CannotStart
    from gateway.cluster_demo.serving import serve_demo

    try:
        address = parse_address(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    try:
        serve_demo(directory, address, tell, lambda url: put(f"demo: {url}"))
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error


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
                "address": part.address,
                "pid": part.pid,
                "alive": part.is_alive,
                "log": part.log,
            }
            for part in state.parts
        ],
        "leaders": [one for _, one in sorted(running.leaders(state).items())],
    }

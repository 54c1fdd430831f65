"""Starts, inspects and ends clusters on this machine. All calls block."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gateway.config.settings import Model, Replication
from gateway.dev_cluster import layout
from gateway.dev_cluster.limits import ASK_SECONDS_MAX
from gateway.dev_cluster.processes import Say, end, start, wait
from gateway.dev_cluster.state import Role, State, StateError, alone, load, save
from gateway.encryption.master_keys import MASTER_FILE
from gateway.identity.authentication import ADMIN_KEY_FILE

_ENDS: Final[tuple[Role, ...]] = ("haproxy", "gateway", "backend", "etcd")
"""The order of ending: callers before those they call."""


def key_file(folder: Path) -> Path:
    """The file of the first key."""
    return folder / layout.GATEWAYS[0] / ADMIN_KEY_FILE


def up(
    folder: Path,
    say: Say,
    models: Sequence[Model] = (),
    clusters: int | None = None,
    replication: Replication | None = None,
) -> State:
    """Starts what does not run, and returns when all is ready. Clusters that existed before keep their data.

    `models`: of new clusters, one for each or one for all; empty means those that exist, or the default. `clusters`:
    how many; None means those that exist, or as many as models. `replication`: the mode of all of them; None means that
    which they have, or sync. Raises `MissingProgram`, `CaError`, `StateError`, `NotReady`, `OSError`. Processes started
    by then keep running: `down` ends them.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with alone(folder):
        state = load(folder)
        if state is None:
            state = layout.make(folder, _models(models, clusters or max(1, len(models))), replication or "sync")
            save(folder, state)
            (folder / layout.UNFINISHED).unlink(missing_ok=True)
        else:
            _check_same(folder, state, models, clusters, replication)
        _start_all(folder, state, say)
    return state


def _models(models: Sequence[Model], clusters: int) -> Sequence[Model]:
    if len(models) in (0, 1):
        return [models[0] if models else "leader_follower"] * clusters
    if len(models) != clusters:
        raise StateError(f"{len(models)} models for {clusters} clusters; give one --model, or one per cluster")
    return models


def _check_same(
    folder: Path, state: State, models: Sequence[Model], clusters: int | None, replication: Replication | None
) -> None:
    there = layout.models_of(state)
    another = "choose another folder with --directory"
    if clusters is not None and clusters != len(there):
        raise StateError(f"{folder} already has {len(there)} clusters; {another}")
    if models and _models(models, len(there)) != there:
        raise StateError(f"the model in {folder} is {', '.join(there)} and cannot change; {another}")
    if replication is not None and (has := layout.replication_of(state)) != replication:
        raise StateError(f"the replication in {folder} is {has} and cannot change; {another}")


def _start_all(folder: Path, state: State, say: Say) -> None:
    start(folder, state, state.of("etcd"), say)
    start(folder, state, state.of("backend"), say)
    for cluster in state.clusters:
        backends = state.backends_of(cluster)
        wait(lambda cluster=cluster: _is_led(state, cluster), f"no backend of {cluster} is the leader", backends)  # type: ignore[misc]
    first, *others = state.of("gateway")
    start(folder, state, [first], say)
    for other in others:
        _give_keys(folder / first.name, folder / other.name)
    start(folder, state, others, say)
    start(folder, state, state.of("manager"), say)
    start(folder, state, state.of("haproxy"), say)


def down(folder: Path, say: Say) -> int:
    """Ends what runs. Returns how many processes ran. Raises `StateError`, `OSError`."""
    folder = folder.absolute()
    state = load(folder)
    if state is None:
        return 0
    # The manager first, and without the lock: a `provision` that it runs may hold the lock, and ends with the manager.
    ended = end(state.of("manager"), say)
    with alone(folder):
        state = load(folder)
        assert state is not None, "nobody removes the file"
        for role in _ENDS:
            ended += end(state.of(role), say)
        for part in state.parts:
            part.pid = part.pid if part.is_alive else None
        save(folder, state)
    return ended


def leaders(state: State) -> list[dict[str, Any]]:
    """For each shard of each cluster: its leader, its epoch and its in-sync replicas, as the backends report them."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    order = {cluster: number for number, cluster in enumerate(state.clusters)}
    for part in state.of("backend"):
        if not part.is_alive:
            continue
        with suppress(OSError, ValueError), urllib.request.urlopen(part.ready, timeout=ASK_SECONDS_MAX) as answer:
            for shard in json.load(answer)["shards"]:
                at = order[part.cluster], shard["shard"]
                known = found.get(at)
                if shard["is_serving"] and (known is None or known["epoch"] < shard["epoch"]):
                    found[at] = {
                        "cluster": part.cluster,
                        "shard": shard["shard"],
                        "leader": part.name,
                        "epoch": shard["epoch"],
                        "in_sync": shard["in_sync"],
                    }
    return [one for _, one in sorted(found.items())]


def _is_led(state: State, cluster: str) -> bool:
    return any(one["cluster"] == cluster for one in leaders(state))


def _give_keys(source: Path, target: Path) -> None:
    """Copies the master key, so that all gateways can open what one sealed, and the administrator's key."""
    target.mkdir(mode=0o700, exist_ok=True)
    for name in (MASTER_FILE, ADMIN_KEY_FILE):
        if not (target / name).exists():
            fresh = target / f".{name}.new"
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write((source / name).read_bytes())
            fresh.replace(target / name)

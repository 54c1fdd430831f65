"""Resizes a running cluster on this machine, as its manager asks: adds or removes backend processes.

The request is a target size, not a difference, and each step is recorded before it is taken: a call that comes twice,
or again after an interruption, continues where the first one stopped. All calls block.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from gateway.dev_cluster import layout
from gateway.dev_cluster.limits import (
    ASK_SECONDS_MAX,
    BACKENDS_MAX,
    BACKENDS_MIN,
    LEAVE_LOOK_SECONDS,
    LEAVE_SECONDS_MAX,
    READY_SECONDS_MAX,
)
from gateway.dev_cluster.processes import Say, becomes, end, start
from gateway.dev_cluster.running import key_file
from gateway.dev_cluster.state import Part, State, StateError, alone, load, save

VERSION = 1
"""Of the JSON that a manager sends its provisioner."""


class ResizeError(Exception):
    """The cluster does not have the requested size; the text says why."""


class Refused(OSError):
    """The cluster refuses a request in its present state; repeating it does not help."""


class Call(msgspec.Struct, frozen=True):
    """The fields of a manager's request that are used here."""

    version: int
    cluster: str
    wanted: int
    """The target number of backends."""


def call_of(data: bytes) -> Call:
    """Parses a request. Raises `ResizeError`, with the field that is wrong."""
    try:
        call = msgspec.json.decode(data, type=Call)
    except msgspec.MsgspecError as error:
        raise ResizeError(f"invalid provisioner request: {error}") from None
    if call.version != VERSION:
        raise ResizeError(f"unsupported version {call.version}; expected {VERSION}")
    return call


def resize(folder: Path, cluster: str, wanted: int, say: Say) -> int:
    """Returns when the cluster has `wanted` backends, and each removed one has handed over all its copies. The result
    is the number of backends before.

    Starts backends that do not run, too. Raises `ResizeError`, `StateError`, `NotReady`, `CaError`, `OSError`.
    """
    folder = folder.absolute()
    if not BACKENDS_MIN <= wanted <= BACKENDS_MAX:
        raise ResizeError(f"a cluster has {BACKENDS_MIN} to {BACKENDS_MAX} backends here, not {wanted}")
    _running(folder, cluster)  # before a file is made in a foreign folder
    with alone(folder):
        state = _running(folder, cluster)
        had = len(state.backends_of(cluster))
        for part in state.backends_of(cluster):
            if part.has_left:  # an earlier call was interrupted
                _forget(folder, state, part, say)
        _take_back(folder, state, cluster, wanted, say)
        while len(state.backends_of(cluster)) < wanted:
            part = layout.add_backend(folder, state, cluster)
            save(folder, state)
            say(f"adding {part.name} to {cluster}")
        start(folder, state, state.backends_of(cluster), say)
    while (leaving := _next_to_leave(folder, cluster, wanted)) is not None:
        _let_leave(folder, leaving, say)
    return had


def _running(folder: Path, cluster: str) -> State:
    state = load(folder)
    if state is None or not all(part.is_alive for part in state.of("etcd")):
        raise StateError(f"no cluster is running in {folder}: start it with `pushq dev-cluster up`")
    if cluster not in state.clusters:
        raise ResizeError(f"no cluster {cluster[:100]!r} in {folder}; the clusters are {', '.join(state.clusters)}")
    return state


# ------------------------------------------------------------------------------------------------------------- leaving


def _take_back(folder: Path, state: State, cluster: str, wanted: int, say: Say) -> None:
    """Keeps leaving backends that are wanted after all: the oldest, as the newest leave first."""
    for part in state.backends_of(cluster)[:wanted]:
        if part.is_leaving:
            start(folder, state, [part], say)  # otherwise its cluster would not know it
            _keep(folder, state, part)
            part.is_leaving = False
            save(folder, state)
            say(f"{part.name} stays in {cluster}")


def _keep(folder: Path, state: State, part: Part) -> None:
    """Cancels a backend's removal at its cluster. Raises `ResizeError`."""
    failed = ""

    def is_kept() -> bool:
        nonlocal failed
        try:
            _ask(folder, state, "DELETE", f"/nodes/{part.name}/removal", part.cluster)
        except OSError as error:
            failed = str(error)  # also while it has only just started
        else:
            return True
        return False

    if not becomes(is_kept, READY_SECONDS_MAX, look_s=LEAVE_LOOK_SECONDS):
        raise ResizeError(f"{part.name} should stay, but its cluster could not be told: {failed}")


def _next_to_leave(folder: Path, cluster: str, wanted: int) -> Part | None:
    """Marks the newest backend as leaving and returns it; None once enough have left."""
    with alone(folder):
        state = _running(folder, cluster)
        backends = state.backends_of(cluster)
        if len(backends) <= wanted:
            return None
        part = backends[-1]
        part.is_leaving = True
        save(folder, state)
        return part


def _let_leave(folder: Path, part: Part, say: Say) -> None:
    """Has the backend's copies made elsewhere, ends it, and forgets it. It stays if its cluster refuses. Raises
    `ResizeError`."""
    say(f"removing {part.name} from {part.cluster}")
    failed = ""

    def is_empty() -> bool:
        nonlocal failed
        state = _running(folder, part.cluster)
        known = next((one for one in state.parts if one.name == part.name and one.is_leaving), None)
        if known is None:
            raise ResizeError(f"{part.name} stays after all: another request came in")
        try:
            nodes = _ask(folder, state, "GET", "", part.cluster)["nodes"]
            node = next((one for one in nodes if one["name"] == part.name), None)
            if node is None:
                return not known.is_alive  # one that has only just started is not known yet
            if not node["removing"]:
                _ask(folder, state, "PUT", f"/nodes/{part.name}/removal", part.cluster)
                return False
        except Refused:
            raise
        except OSError as error:
            failed = f"; last error: {error}"
            return False  # gateways may be busy, or their coordinator not reachable
        failed = ""
        return not node["copies"]

    def has_left() -> bool:
        if not is_empty():
            return False
        with alone(folder):
            if not is_empty():  # another call may have changed it since
                return False
            state = _running(folder, part.cluster)
            for one in [one for one in state.parts if one.name == part.name]:
                one.has_left = True
                save(folder, state)
                _forget(folder, state, one, say)
        return True

    try:
        is_gone = becomes(has_left, LEAVE_SECONDS_MAX, look_s=LEAVE_LOOK_SECONDS)
    except Refused as error:
        _stay(folder, part)
        raise ResizeError(f"{part.name} stays in {part.cluster}: {error}") from None
    if not is_gone:
        raise ResizeError(
            f"{part.name} still has copies after {LEAVE_SECONDS_MAX:g} s; they move as soon as other backends can "
            f"take them. Try again later{failed}"
        )


def _stay(folder: Path, leaving: Part) -> None:
    """Clears the mark of a backend whose removal was refused."""
    with alone(folder):
        if (state := load(folder)) is None:
            return
        for one in state.parts:
            if one.name == leaving.name:
                one.is_leaving = False
        save(folder, state)


def _forget(folder: Path, state: State, part: Part, say: Say) -> None:
    """Ends a backend that has handed over all its copies, and deletes its folder. Its record goes last, so that an
    interrupted call can be continued."""
    end([part], say)
    shutil.rmtree(part.env["PUSHQ_DATA"], ignore_errors=True)
    state.parts.remove(part)
    save(folder, state)
    say(f"{part.name} has left {part.cluster}")


def _ask(folder: Path, state: State, method: str, path: str, cluster: str) -> Any:
    """Calls `/v1/cluster` at the first gateway that answers well. Raises `OSError`, including `Refused`."""
    key = key_file(folder).read_text().strip()
    failed: OSError = OSError("no gateway is running")
    for gateway in state.of("gateway"):
        if not gateway.is_alive:
            continue
        url = f"http://{gateway.address}/v1/cluster{path}?cluster={quote(cluster, safe='')}"
        request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {key}"})
        try:
            with urllib.request.urlopen(request, timeout=ASK_SECONDS_MAX) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(1_000).decode(errors="replace")
            if error.code == HTTPStatus.CONFLICT:
                raise Refused(_detail_of(said)) from None
            failed = OSError(f"{gateway.name} returned {error.code}: {said}")
        except OSError as error:
            failed = error
    raise failed


def _detail_of(problem: str) -> str:
    try:
        return str(json.loads(problem)["detail"])
    except (ValueError, KeyError, TypeError):
        return problem

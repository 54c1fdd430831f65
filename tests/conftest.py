"""What every test gets: the asyncio backend, no way out of this machine, and real servers that end with the test."""

from __future__ import annotations

import asyncio.constants
import gc
import importlib.metadata
import itertools
import os
import platform
import re
import signal
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from backend_store.core.ledger import flowed, held_in
from backend_store.node.partition import Partition
from tests.support import network, prerequisites, seeds, trust
from tests.support import server as servers
from tests.support.server import PushqServer
from tests.support.several import SeveralServer
from tests.tools.long import is_long, names_of, read_long
from tests.tools.tiers import is_of, tier_of

SHOWN_PACKAGES = ("pytest", "hypothesis", "lmdb", "msgspec", "starlette", "uvicorn", "websockets", "sse-starlette")
SHOWN_PROGRAMS = ("chromium-headless-shell", "strace", "curl")
MODEL_LONG_EXAMPLES = 5_000
SURVIVORS_MAX = 10_000
"""Objects that outlived tests and are looked at again after each: a hundredth of a second of a processor."""
STACK_DEPTH = 3
GATE_EXAMPLES = 25
"""Of a test that says nothing else. `make explore` tries Hypothesis's hundred, from another seed each time."""

# The same examples each time: what a change broke shows, not what the dice found beside it; `make explore` has others.
# A loaded machine makes one example slow now and then; that says nothing about the code.
_usual = settings(deadline=None, print_blob=True, database=None, suppress_health_check=[HealthCheck.too_slow])
# The gate says that something is wrong, at once; what the least example of it is, `explore` takes its time to find.
settings.register_profile(
    "gate", _usual, derandomize=True, max_examples=GATE_EXAMPLES, phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("explore", _usual)
settings.register_profile("long", settings.get_profile("explore"), max_examples=MODEL_LONG_EXAMPLES)
settings.load_profile("explore" if seeds.IS_EXPLORING else "gate")
seeds.draw_alike()


def _shallow(frame: FrameType | None, walk: Callable[..., Any] = traceback.walk_stack) -> Any:
    return walk(frame) if frame is None else itertools.islice(walk(frame), STACK_DEPTH)


# A loop in debug mode notes where each callback, task and future came from: of pytest's whole depth that takes a sixth
# of the time that tests take.
asyncio.constants.DEBUG_STACK_DEPTH = STACK_DEPTH  # type: ignore[misc]
traceback.walk_stack = _shallow  # type: ignore[assignment]

# Of every Java that tests start, here or in a job's process: what runs for seconds is not worth compiling well, and the
# classes of a released Spark are not worth proving well-formed again each time. Hadoop starts a `chmod` for each file
# that it writes, and Java a helper program before it, but for the last option.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Djdk.lang.Process.launchMechanism=VFORK",
)
os.environ.setdefault("JDK_JAVA_OPTIONS", " ".join(JAVA_OPTIONS))

StartServer = Callable[..., PushqServer]
_skipped: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("pure", "real"), help="only tests of this tier; see tests/tools/tiers.py")
    parser.addoption("--long", action="store_true", help="of the real tier, only what tests/long.toml has")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tier, here = config.getoption("tier"), Path(__file__).parent
    if tier is None or not collection_path.is_relative_to(here) or collection_path == here:
        return None
    return None if is_of(collection_path.relative_to(here).as_posix(), tier) else True


def pytest_configure() -> None:
    network.refuse_outside()
    trust.trust_nobody()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell gives that to what it starts in the background; programs that tests start are to hear the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which process runs what, where there are several: see `tests/tools/together.py`."""
    if config.getoption("dist") != "loadscope":
        return None
    from tests.tools.together import Together

    return Together(config, log)


@pytest.fixture(autouse=True)
def _stays_on_this_machine() -> Iterator[None]:
    network.refused.clear()
    yield
    assert not network.refused, f"connects beyond this machine: {', '.join(network.refused)}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Where processes share the tests, those of one id are one test: the others would not run, and nobody would know.
    twice = [test for test, times in Counter(item.nodeid for item in items).items() if times > 1]
    if twice:
        raise pytest.UsageError(f"several tests of one id: {', '.join(twice)}")
    if config.getoption("tier") == "real":
        _choose(config, items, wants_long=config.getoption("long"))


def _choose(config: pytest.Config, items: list[pytest.Item], *, wants_long: bool) -> None:
    """Leaves the long tests of the real tier, or all others. What is asked for without a tier runs as it is."""
    named, files = {one.test for one in read_long()}, {item.nodeid.partition("::")[0] for item in items}
    there = {name for item in items for name in names_of(item.nodeid)}
    if unknown := [test for test in sorted(named - there) if test.partition("::")[0] in files]:
        raise pytest.UsageError(f"tests/long.toml names what is not there: {', '.join(unknown)}")
    others = [item for item in items if is_long(item.nodeid, named) is not wants_long]
    items[:] = [item for item in items if is_long(item.nodeid, named) is wants_long]
    config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    # What is there before the first test stays for good: a collection after a test looks at its objects alone.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _leaks_are_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """A socket or file that a real test left open fails that test, and not whichever runs when it is collected.

    So many that outlive a test came with a module that it imported: they stay, as what was there before it does.
    """
    yield
    if tier_of(request.node.nodeid) == "real":
        gc.collect()
        if len(gc.get_objects(generation=2)) > SURVIVORS_MAX:
            gc.freeze()


def pytest_report_header() -> list[str]:
    packages = (f"{name} {importlib.metadata.version(name)}" for name in SHOWN_PACKAGES)
    programs = (_program_version(name) for name in SHOWN_PROGRAMS)
    return [f"python {platform.python_version()}, " + ", ".join(packages), ", ".join(programs)]


def _program_version(name: str) -> str:
    path = prerequisites.find(name)
    if path is None:
        return f"{name} missing"
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20)
    number = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return f"{name} {number[0] if number else 'of unknown version'}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A skip hides what was not checked, so a run with one is not a green run.
    if _skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped:
        terminalreporter.write_line(f"not green: {len(_skipped)} skipped, and a skip hides what was not checked")


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Debug mode notices what a loop must not do, but makes it several times slower: sockets, disks and loads go
    without."""
    path = request.path.relative_to(Path(__file__).parent).as_posix()
    return ("asyncio", {"debug": tier_of(path) == "pure"})


@pytest.fixture
def free_port() -> int:
    return servers.free_port()


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the system's Chromium, for Playwright's `executable_path`: as it is without windows, which opens a
    page for a fifth of what the whole browser takes."""
    return prerequisites.require("chromium-headless-shell")


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """`start_server(*flags, dev=False, env=None, data=None)`: a ready server; all are killed after the test."""
    started: list[PushqServer] = []

    def start(*flags: str, data: Path | None = None, **options: Any) -> PushqServer:
        server = PushqServer(data or tmp_path / f"data{len(started)}", *flags, **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def server(start_server: StartServer) -> PushqServer:
    """A server of this test's own."""
    return start_server()


@pytest.fixture
def dev_server(start_server: StartServer) -> PushqServer:
    """A server of this test's own, with `--dev`."""
    return start_server(dev=True)


@pytest.fixture(scope="module")
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    """One server for a file of tests that only use queues of their own names; with the settings that the file has as
    `SERVER_ENV`, and of several gateway processes where `SHARED_GATEWAYS` says so."""
    data, env = tmp_path_factory.mktemp("shared") / "data", getattr(request.module, "SERVER_ENV", None)
    gateways = int(os.environ.get("SHARED_GATEWAYS", "1"))
    with PushqServer(data, env=env) if gateways == 1 else SeveralServer(data, gateways=gateways, env=env) as server:
        yield server


@pytest.fixture(autouse=True, scope="session")
def the_ledger_adds_up() -> Iterator[None]:
    """After every commit of every test in this process, what came in, less what went, is what is there."""
    committed = Partition.committed

    def checked(partition: Partition) -> None:
        state = partition.decided
        if not state.ledger.is_doomed:
            assert flowed(state.ledger) == held_in(state)[0], f"{partition.label}: {state}"
        committed(partition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "committed", checked)
        yield

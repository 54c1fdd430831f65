"""What `pip install` brings, to environments that have nothing of this working copy: the wheel, an editable install, or
the client alone."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import httpx2
import pytest
from packaging.requirements import Requirement

from tests.support.environment import without_settings
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "tests", "build", "dist", "*.egg-info", "__pycache__", "pushq-data*", "*.mdb")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
OFFLINE = ["--no-index", "--no-deps"]
OF_THE_SERVER = ("gateway", "backend_store", "throttling", "web_console", "lmdb", "starlette", "uvicorn", "redis")

PROGRAM = """
import pathlib, pushq, push.client
from pushq import connect, Message, Unavailable
assert connect is push.client.connect and pushq.__all__ is push.client.__all__
print(pathlib.Path(pushq.__file__).parent)
"""
TYPED = """
import pushq


async def right() -> int | None:
    async with pushq.connect("http://127.0.0.1:8080", "key") as client:
        stored: pushq.Published = await client.publish("orders", {"sku": 7})
        async for message in client.subscribe("orders", credit=10):
            await message.ack()
    return stored.seq


async def wrong(client: pushq.Pushq) -> None:
    await client.publish(7, {"sku": 7})
    client.no_such_thing()
"""
UNREAD = """
[mypy-httpx2.*,httpcore2.*,anyio.*,websockets.*,truststore.*]
follow_imports = skip
"""
"""Libraries below the client: what it takes and gives has none of their types, and to read them takes seconds."""
MISTAKES = [
    'TYPED.py:14: error: Argument 1 to "publish" of "Pushq" has incompatible type "int"; expected "str"  [arg-type]',
    'TYPED.py:15: error: "Pushq" has no attribute "no_such_thing"  [attr-defined]',
]
ROUND = """
import asyncio, importlib.util, sys
import pushq

assert not [name for name in sys.argv[3:] if importlib.util.find_spec(name)], "the server is here, too"


async def main() -> None:
    async with pushq.Admin(*sys.argv[1:3]) as admin:
        await admin.create_queue("orders")
    async with pushq.connect(*sys.argv[1:3]) as client:
        await client.publish("orders", {"sku": 7})
        async for message in client.subscribe("orders", credit=1):
            print(message.body)
            await message.ack()
            break


asyncio.run(main())
"""


def elsewhere() -> dict[str, str]:
    """The environment of whoever has not been told where this working copy lies."""
    return {name: value for name, value in without_settings().items() if name != "PYTHONPATH"}


def run(command: list[str], folder: Path) -> str:
    ended = subprocess.run(
        command, cwd=folder, env=elsewhere(), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the repository: a build writes beside it."""
    folder = tmp_path_factory.mktemp("package") / "source"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=LEFT_OUT)
    return folder


def environment(folder: Path, needed: Path) -> tuple[Path, Path]:
    """An interpreter, and where its packages lie. Nothing is asked of an index: what is needed lies in a folder, and a
    `.pth` leads there without what is installed there by a `.pth` of its own."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    places = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    (places / "needed.pth").write_text(f"{needed}\n")
    return python, places


def install(python: Path, *what: str) -> None:
    run([*PIP, "--python", str(python), "install", "--no-compile", *OFFLINE, *what], python.parent)


def wheel_of(source: Path, folder: Path) -> Path:
    run([*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", str(folder), str(source)], folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel."""
    python, _ = environment(tmp_path_factory.mktemp("wheel") / "venv", Path(sysconfig.get_path("purelib")))
    install(python, "--no-build-isolation", str(source))
    return python


@pytest.fixture(scope="module")
def editable(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment where the source was installed as it lies."""
    python, _ = environment(tmp_path_factory.mktemp("editable") / "venv", Path(sysconfig.get_path("purelib")))
    install(python, "--no-build-isolation", "--editable", str(source))
    return python


@pytest.fixture(scope="module")
def client_only(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the client's wheel and what that asks for, and with nothing else."""
    folder = tmp_path_factory.mktemp("client")
    needed = folder / "needed"
    needed.mkdir()
    python, places = environment(folder / "venv", needed)
    install(python, str(wheel_of(source / "push", folder)))
    (metadata,) = importlib.metadata.distributions(name="pushq-client", path=[str(places)])
    for name in everything_asked_for(metadata.requires or []):
        link(importlib.metadata.distribution(name), needed)
    return python


def everything_asked_for(requires: list[str]) -> set[str]:
    """The names of all distributions below these requirements."""
    found: set[str] = set()
    todo = [Requirement(line) for line in requires]
    while todo:
        asked = todo.pop()
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        assert asked.specifier.contains(importlib.metadata.version(asked.name)), str(asked)
        if asked.name not in found:
            found.add(asked.name)
            todo += [Requirement(line) for line in importlib.metadata.distribution(asked.name).requires or []]
    return found


def link(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        if not (folder / top).exists():
            os.symlink(str(distribution.locate_file(top)), folder / top)


@pytest.mark.parametrize("how", ["installed", "editable", "client_only"])
def test_the_sdk_is_imported_by_the_name_it_is_installed_by_and_has_its_types(
    how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    python: Path = request.getfixturevalue(how)
    place = Path(run([str(python), "-c", PROGRAM], tmp_path).strip())
    assert not place.is_relative_to(ROOT)
    assert (place / "py.typed").is_file()


@pytest.fixture(scope="module")
def known_types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the type checker keeps what it knows of the library that all environments share."""
    return tmp_path_factory.mktemp("known-types")


@pytest.mark.parametrize("how", ["installed", "editable", "client_only"])
def test_a_type_checker_finds_what_is_wrong_in_a_program_that_imports_it(
    how: str, request: pytest.FixtureRequest, tmp_path: Path, known_types: Path
) -> None:
    python: Path = request.getfixturevalue(how)
    (tmp_path / "TYPED.py").write_text(TYPED)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{UNREAD}")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-executable", str(python)]
    ended = subprocess.run(
        [*command, "--cache-dir", str(known_types), "TYPED.py"],
        cwd=tmp_path,
        env=elsewhere(),
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * PATIENCE_S,
    )
    assert ended.stdout.splitlines() == MISTAKES, ended.stderr


def test_what_a_server_shows_and_runs_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    (site,) = installed.parents[1].glob("lib/python*/site-packages")
    for file in (
        *("gateway/docs/README.md", "gateway/deploy/systemd/pushq.service", "gateway/templates/docs.html"),
        *("push/js/pushq.js", "push/js/pushq.d.ts", "throttling/gcra.lua", "web_console/static/docs.css"),
    ):
        assert (site / file).is_file(), file
    assert not (site / "push" / "js" / "src").exists(), "pages load the one file that is made from it"
    assert run([str(installed.with_name("pushq")), "--version"], tmp_path).startswith("pushq ")


def test_an_editable_install_is_what_lies_there_now(editable: Path, source: Path, tmp_path: Path) -> None:
    new = source / "push" / "client" / "new_here.py"
    new.write_text("FOUND = True\n")
    run([str(editable), "-c", "from push.client.new_here import FOUND"], tmp_path)
    new.unlink()
    assert run([str(editable.with_name("pushq")), "--version"], tmp_path).startswith("pushq ")


def test_the_client_alone_publishes_and_consumes_without_anything_of_the_server(
    client_only: Path, shared_server: PushqServer, tmp_path: Path
) -> None:
    command = [str(client_only), "-c", ROUND, shared_server.url, shared_server.key, *OF_THE_SERVER]
    assert run(command, tmp_path) == "{'sku': 7}\n"
    held = httpx2.get(f"{shared_server.url}/v1/queues/orders", headers=shared_server.headers).json()["stats"]
    assert (held["ready"], held["in_flight"]) == (0, 0)


def test_the_client_alone_says_of_itself_what_the_server_says() -> None:
    server = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    client = tomllib.loads((ROOT / "push" / "pyproject.toml").read_text())["project"]
    for field in ("version", "requires-python", "license", "authors"):
        assert client[field] == server[field], field
    assert set(client["dependencies"]) <= set(server["dependencies"])
    packages = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in (ROOT / "push" / "client").rglob("*.py")
        if file.parent.name != "__pycache__"
    }
    told = tomllib.loads((ROOT / "push" / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(told) == packages | {"pushq"}

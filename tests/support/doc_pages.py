"""Runs a documentation page as its reader would: in one shell in an empty folder, from the first block to the last.

In a `console` block, a line that starts with `$ ` is a command, and the lines below it are its expected output. `…`
matches anything within a line, and any number of lines if alone on a line. `pushq serve` runs in the background until
the page ends; the page's port 8080 is replaced by a free one. A `python` block is a program. Programs and other `pushq`
commands are forks, see `page_command`. An exit code other than 0 also fails the page. Blocks of other kinds (`sh`,
`toml`, …) are not run.
"""

import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import NamedTuple

from tests.support.environment import SMALL_FOLDERS, without_settings
from tests.support.page_commands import CLIENT, commands
from tests.support.server import free_port

PAGE_S_MAX = 120.0
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "\x1e"
# Waiting for the port keeps the page's next command from running before the server listens; the server prints its own
# output once it does.
_PRELUDE = """
wait_until_listening() {
  for _ in $(seq 300); do
    (exec 3<>/dev/tcp/127.0.0.1/$DOC_PORT) 2>/dev/null && grep -q "^ready in" serve.out && { cat serve.out; return 0; }
    kill -0 $! 2>/dev/null || break
    sleep 0.05
  done
  cat serve.out; echo "pushq serve does not listen"; return 1
}
forked() { python -I -S "$DOC_COMMAND" "$DOC_COMMANDS" "$@"; }
serve() {
  exec env $DOC_SERVER python -I -S "$DOC_COMMAND" "$DOC_COMMANDS" gateway serve --listen 127.0.0.1:$DOC_PORT "$@"
}
pushq() { [ "$1" = serve ] && serve "${@:2}"; forked gateway "$@"; }
"""


class Step(NamedTuple):
    line: int
    command: str
    output: str | None  # expected output; None: any


def steps_of(page: str) -> list[Step]:
    """The commands and programs of a page, in order."""
    steps: list[Step] = []
    for block in _BLOCK.finditer(page):
        line = page.count("\n", 0, block.start()) + 2
        kind, text = block.groups()
        if kind == "python":
            steps.append(Step(line, f"forked tests.support.page_program <<'END_OF_BLOCK'\n{text}END_OF_BLOCK", None))
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, output = re.findall(r"\A((?:.*\\\n)*.*\n)((?s:.*))\Z", part)[0]
            steps.append(Step(line, command.rstrip("\n"), output))
            line += part.count("\n")
    return steps


def run_page(page: str, folder: Path) -> list[str]:
    """Runs a page in an empty folder; returns one text for each step that failed."""
    port, steps, wrong = str(free_port()), steps_of(page), []
    script = _PRELUDE + "".join(f"{_as_shell(step.command)}\nprintf '{_MARK}%s{_MARK}' $?\n" for step in steps)
    said = _run_shell(script.replace("8080", port), folder, port).replace(port, "8080").split(_MARK)
    for step, printed, code in zip(steps, said[0::2], said[1::2], strict=False):
        if code != "0":
            wrong.append(f"line {step.line}: {step.command!r} ended with {code} and printed\n{printed}")
        elif step.output is not None and not _matches(step.output, printed):
            wrong.append(f"line {step.line}: {step.command!r} printed\n{printed}instead of\n{step.output}")
    if len(said) // 2 < len(steps):
        wrong.append(f"line {steps[len(said) // 2].line}: the page stopped here\n{said[-1]}")
    return wrong


def _as_shell(command: str) -> str:
    if not command.startswith("pushq serve"):
        return command
    return f"{command.rstrip(' &')} >serve.out 2>&1 &\nwait_until_listening"


def _matches(shown: str, printed: str) -> bool:
    lines = [line.rstrip() for line in shown.rstrip().splitlines()]
    parts = [r"(.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"[ \t]*\n" for line in lines]
    return re.fullmatch("".join(parts), printed.rstrip() + "\n" if printed.strip() else "") is not None


def _run_shell(script: str, folder: Path, port: str) -> str:
    env = without_settings()
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "HOME": str(folder), "DOC_PORT": port}
    env["DOC_SERVER"] = " ".join(f"{name}={value}" for name, value in SMALL_FOLDERS.items())
    env |= {"PUSHQ_URL": f"http://127.0.0.1:{port}", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    env["DOC_COMMAND"] = str(CLIENT)
    with commands() as env["DOC_COMMANDS"], (folder / "page.out").open("w+b") as out:
        argv = ["bash", "-c", script]
        shell = Popen(argv, cwd=folder, env=env, stdin=DEVNULL, stdout=out, stderr=out, start_new_session=True)
        with suppress(TimeoutExpired):  # the missing marks show which step hung
            shell.wait(PAGE_S_MAX)
        with suppress(ProcessLookupError):  # background processes of the page end, too
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        out.seek(0)
        return out.read().decode(errors="replace")

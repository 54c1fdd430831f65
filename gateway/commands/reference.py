"""Makes `docs/reference/cli.md` from the commands: `python -m gateway.commands.reference > docs/reference/cli.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import click

from gateway.commands.base import CommonOption
from gateway.commands.exits import MEANINGS

INTRODUCTION = """# Command line

`pushq` is a server, a client and a toolbox. This page is made from the commands; `pushq COMMAND --help` says the same.

- **Where.** `--url` or `--context`, else `PUSHQ_URL`, else the [context](#pushq-context) of `PUSHQ_CONTEXT` or of
  `pushq context use`, else `http://127.0.0.1:8080`.
- **Key.** `--key-file` or that of `--context`, else `PUSHQ_KEY`, else that of the context whose server is asked, else
  `admin.key` in the data folder (`--data`, else `./pushq-data`).
- **https://.** `--ca`, else `PUSHQ_CA_FILE`, has the authorities to trust in place of the system's. `PUSHQ_CERT_FILE`
  has a certificate of your own with its key, for a server that asks for one.
- **Output.** Data goes to stdout, talk to stderr. `--json` puts JSON on stdout: one document, or one line a message
  where messages stream. Errors are then a JSON problem on stderr, but for a wrong command line.
- **Terminals.** Long work shows a progress bar when stderr is a terminal. `NO_COLOR` switches colours off.
- **A busy server.** Where it asks to come back within 15 s, a command waits and says so; where it asks for longer, the
  command ends with 5 and the time.
- **Asking.** What destroys something asks first; `--yes` answers beforehand.
"""

EXIT_NOTES = """6 is about what the command line names, also in an option (`--move-to`). An absent queue to
which a setting or a plan refers (`--dead-letter-queue`) makes a request that is not valid: 1."""


def reference() -> str:
    """The content of the page."""
    from gateway.cli import cli

    lines = [INTRODUCTION, "## Exit codes", "", "| Code | Meaning |", "|---|---|"]
    lines += [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    lines += ["", EXIT_NOTES]
    commands = list(commands_below(click.Context(cli, info_name="pushq")))
    lines += ["", *_common_options(commands)]
    for ctx in commands:
        lines += ["", *_section(ctx)]
    return "\n".join(lines) + "\n"


def commands_below(ctx: click.Context) -> Iterator[click.Context]:
    """Every command below `ctx`, in the order of `--help`; a group comes before its subcommands."""
    group = ctx.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None, name
        child = click.Context(command, info_name=name, parent=ctx)
        yield child
        yield from commands_below(child)


def _common_options(commands: Sequence[click.Context]) -> Iterator[str]:
    """A table of the options that mean the same on each command."""
    rows: dict[str, str] = {}
    for ctx in commands:
        for option in ctx.command.params:
            if isinstance(option, CommonOption):
                rows.setdefault(option.opts[0], _row(option, ctx))
    yield from ("## Common options", "", "| Option | |", "|---|---|", *rows.values())


def _section(ctx: click.Context) -> Iterator[str]:
    command = ctx.command
    is_alone = ctx.parent is not None and ctx.parent.parent is None
    yield f"{'##' if is_alone else '###'} {ctx.command_path}"
    yield ""
    yield inspect.cleandoc(command.help or "")
    if isinstance(command, click.Group):
        return
    yield from ("", "```sh", f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}", "```")
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    own = [option for option in options if not isinstance(option, CommonOption)]
    if own:
        yield from ("", "| Option | |", "|---|---|", *(_row(option, ctx) for option in own))
    if common := [f"`{option.opts[0]}`" for option in options if isinstance(option, CommonOption)]:
        yield from ("", f"Common options: {', '.join(common)}.")


def _row(option: click.Option, ctx: click.Context) -> str:
    record = option.get_help_record(ctx)
    assert record is not None, option.name
    return f"| `{_cell(record[0])}` | {_cell(record[1])} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")

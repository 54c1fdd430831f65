"""`pushq`: the command line, from a server's start to a message on stdout. The commands are in `commands/`."""

from __future__ import annotations

import os

import click

from gateway.commands.base import Group

# In the order in which a new user meets them. A module is imported when its command is used.
COMMANDS = {
    "serve": "gateway.commands.serve:serve",
    "demo": "gateway.commands.demo:demo",
    "publish": "gateway.commands.publish:publish",
    "consume": "gateway.commands.consume:consume",
    "move": "gateway.commands.move:move",
    "queue": "gateway.commands.queue:queue",
    "group": "gateway.commands.group:group",
    "key": "gateway.commands.key:key",
    "tenant": "gateway.commands.tenant:tenant",
    "usage": "gateway.commands.usage:usage",
    "alert": "gateway.commands.alert:alert",
    "context": "gateway.commands.context:context",
    "connection": "gateway.commands.connection:connection",
    "top": "gateway.commands.top:top",
    "doctor": "gateway.commands.doctor:doctor",
    "bench": "gateway.commands.bench:bench",
    "gateway": "gateway.commands.gateway:gateway",
    "metadata": "gateway.commands.metadata:metadata",
    "backend": "gateway.commands.backend:backend",
    "cluster": "gateway.commands.cluster:cluster",
    "manager": "gateway.commands.manager:manager",
    "recover": "gateway.commands.recover:recover",
    "dev-cluster": "gateway.commands.dev_cluster:dev_cluster",
    "ca": "gateway.commands.ca:ca",
    "backup": "gateway.commands.backup:backup",
    "restore": "gateway.commands.backup:restore",
    "rotate-keys": "gateway.commands.rotate_keys:rotate_keys",
    "config": "gateway.commands.config:config",
    "completion": "gateway.commands.completion:completion",
}
HELP_COLUMNS_MAX = 100


def _show_version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or ctx.resilient_parsing:
        return
    from gateway.version import VERSION

    click.echo(f"pushq {VERSION}")
    ctx.exit()


@click.group(
    name="pushq",
    cls=Group,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS_MAX},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Pushq: a durable message queue that pushes to browsers, servers and shells.

    Clients find the server by --url, PUSHQ_URL or a context (http://127.0.0.1:8080), and the key by --key-file,
    PUSHQ_KEY, the context or ./pushq-data/admin.key. Data goes to stdout, talk to stderr.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> None:
    """The console script."""
    try:
        cli.main(prog_name="pushq")
    except OSError as error:  # a command translates its own; this is the text of --help or --version
        from gateway.commands.exits import Failure, os_text

        Failure(f"stdout: {os_text(error)}").show()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()

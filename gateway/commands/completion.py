"""`pushq completion`: prints a shell script that completes commands, options, and names of queues."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gateway.commands.base import command
from gateway.commands.output import put


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    bash: `eval "$(pushq completion bash)"`; zsh the same; fish: `pushq completion fish | source`.

    Names of queues and groups are asked of the server that the line so far means, for a second at most: where it is
    away or the key may not view them, there are none, and nothing is said. The key command of a context is not run.
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    put(kind(ctx.find_root().command, {}, "pushq", "_PUSHQ_COMPLETE").source())

"""`pushq config …`: checks the settings that a server would read, and shows where each value comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.commands.base import group, json_option
from gateway.commands.exits import Exit, Failure
from gateway.commands.output import put, put_json, put_table, tell
from gateway.commands.settings import config_file_option, load

if TYPE_CHECKING:
    from gateway.config.load import Loaded


@group("config")
def config() -> None:
    """Check and show settings.

    Settings come from pushq.toml, then PUSHQ_SECTION__KEY, then flags; later sources override earlier ones.
    """


@config.command("check")
@config_file_option
@json_option
def check(config_file: Path | None, as_json: bool) -> None:
    """Check the settings. Invalid ones are reported with exit code 3."""
    loaded = load({}, config_file)
    changed = loaded.origins
    _check_keys(loaded)
    if as_json:
        put_json({"ok": True, "set": changed})
    else:
        tell(f"the settings are valid; {len(changed)} differ from their defaults")


def _check_keys(loaded: Loaded) -> None:
    """Checks key files of issuers; no key server is asked."""
    from gateway.identity.jwks import BadKeys
    from gateway.identity.jwks_refresh import KeySets

    try:
        KeySets(loaded.settings.auth.jwt)
    except BadKeys as error:
        raise Failure(f"auth.jwt.issuers: {error}", exit=Exit.CANNOT_START) from None


@config.command("show")
@click.option("--origin", "with_origin", is_flag=True, help="Also show where each value comes from.")
@config_file_option
@json_option
def show(with_origin: bool, config_file: Path | None, as_json: bool) -> None:
    """Show every setting as a server started here would use it."""
    described = load({}, config_file).describe()
    if as_json:
        put_json({"items": [each._asdict() for each in described], "next": None})
    elif with_origin:
        put_table(
            ["setting", "value", "origin"], [[each.key, json.dumps(each.value), each.origin] for each in described]
        )
    else:
        for each in described:
            put(f"{each.key} = {json.dumps(each.value)}")

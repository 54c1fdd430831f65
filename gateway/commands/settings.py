"""Reads settings for `serve`, `demo` and `config`: the same files, variables and flags, the same errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.exits import Exit, Failure

if TYPE_CHECKING:
    from gateway.config.load import Loaded

config_file_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A settings file.  [default: pushq.toml, if present]",
)


def load(flags: Mapping[str, Any], config_file: Path | None) -> Loaded:
    """Loads the settings. Raises `Failure` with exit code `CANNOT_START` if one is wrong."""
    from gateway.config.load import ConfigError, load_settings

    try:
        return load_settings(flags, os.environ, config_file)
    except ConfigError as error:
        problem = {"title": "Invalid settings", "detail": str(error), "key": error.key, "code": "config"}
        raise Failure(str(error), exit=Exit.CANNOT_START, problem=problem) from None

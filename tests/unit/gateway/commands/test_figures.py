"""Numbers on the command line are digits, or they are refused by what was written and how it is meant."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from gateway.cli import cli
from gateway.commands.figures import Figure, FigureRange, Whole, WholeRange
from gateway.commands.reference import commands_below


@pytest.mark.parametrize("text", ["1_000", " 5", "5 ", "٣", "", "0x10", "1e3", "five", "1."])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    for kind in (Whole(), WholeRange(0, 10_000)):
        with pytest.raises(click.BadParameter, match="is not a whole number such as 1000"):
            kind.convert(text, None, None)


@pytest.mark.parametrize("text", ["1_000.5", " 0.5", "nan", "inf", "1,5", ""])
def test_what_is_no_number_is_refused(text: str) -> None:
    for kind in (Figure(), FigureRange(0, 10_000)):
        with pytest.raises(click.BadParameter, match="is not a number such as"):
            kind.convert(text, None, None)


def test_numbers_are_read() -> None:
    assert [Whole().convert(text, None, None) for text in ("0", "-7", "+7", "007")] == [0, -7, 7, 7]
    assert [Figure().convert(text, None, None) for text in ("5", "0.5", ".5", "5.", "1e-3")] == [5, 0.5, 0.5, 5, 0.001]
    with pytest.raises(click.BadParameter, match="range"):
        WholeRange(1, 9).convert("10", None, None)


def test_the_command_says_which_option_is_wrong() -> None:
    ran = CliRunner().invoke(cli, ["consume", "q", "--count", "1_000"])
    assert ran.exit_code == 2 and "--count" in ran.output and "'1_000' is not a whole number" in ran.output


def test_no_option_reads_numbers_in_another_way() -> None:
    loose = [
        (ctx.command_path, option.name)
        for ctx in commands_below(click.Context(cli, info_name="pushq"))
        for option in ctx.command.params
        if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType))
        and not isinstance(option.type, (Whole, WholeRange, Figure, FigureRange))
    ]
    assert loose == []

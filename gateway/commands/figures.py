"""Parameter types for numbers, in plain digits. Python alone would accept `1_000`, blanks and digits of other scripts,
too, and read a typing error as another number.
"""

from __future__ import annotations

import re
from re import Pattern
from typing import Any, Final

import click
from click.types import FloatParamType, IntParamType

_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_FIGURE: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class _Digits(click.ParamType[Any]):
    """A mixin: accepts only text that matches `pattern` before the number type it precedes converts it."""

    pattern: Pattern[str]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and self.pattern.fullmatch(value) is None:
            kind = "whole number such as 1000" if self.pattern is _WHOLE else "number such as 1000 or 0.5"
            self.fail(f"{value!r} is not a {kind}", param, ctx)
        return super().convert(value, param, ctx)


class Whole(_Digits, IntParamType):
    pattern = _WHOLE


class WholeRange(_Digits, click.IntRange):
    pattern = _WHOLE


class Figure(_Digits, FloatParamType):
    pattern = _FIGURE


class FigureRange(_Digits, click.FloatRange):
    pattern = _FIGURE

"""Builds `push/js/pushq.js` from the files in `push/js/src`; `python -m tests.support.joined_js` writes it.

A page loads the JavaScript client as a single file. Its source consists of several ES modules with explicit imports. In
the joined file they share one scope, in dependency order, so a top-level name of one module must not mean anything else
in the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from posixpath import join, normpath
from typing import NamedTuple

JS = Path(__file__).resolve().parents[2] / "push" / "js"
SOURCES = JS / "src"
JOINED = JS / "pushq.js"
ENTRY = "pushq.js"
"""Lists the public names; the comment at its top becomes that of the joined file."""

COMMAND = "python -m tests.support.joined_js"
MADE = f"// Made from push/js/src by `{COMMAND}`: change it there.\n"

_TAKEN = re.compile(r'^(import|export) \{([^}]+)\} from "(\.[^"]+)";\n\n?', re.MULTILINE)
_HEAD = re.compile(r"\A/\*\*((?!\*/).)*\*/\n\n", re.DOTALL)
_DECLARED = re.compile(r"^(export )?(?:(?:async )?function|class|const|let) (\w+)", re.MULTILINE)
_ANOTHER_FORM = re.compile(r"^(?:import|export (?!async |function|class|const|let)|(?:const|let) \W).*", re.MULTILINE)
# A regular expression is told from a division by its surroundings: our code puts spaces around divisions.
_PIECE = re.compile(
    r"""(?P<left_out>//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'
      |(?<=[(,=:?!&|\[\s])/(?![/*\s])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/[a-z]*)
      |(?P<template>`)|(?P<opened>\{)|(?P<closed>\})""",
    re.DOTALL | re.VERBOSE,
)
_TEMPLATE_TEXT = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*(`|\$\{)", re.DOTALL)
_MENTIONED = re.compile(r"(?<![\w$#])(?<!(?<!\.\.)\.)(?<!\bget )([A-Za-z_$][\w$]*)(?![\w$:])")


class Unjoinable(ValueError):
    """The files cannot be joined; the message says which one is at fault."""


class Source(NamedTuple):
    """A source file, by its path below the folder."""

    name: str
    takes: Mapping[str, frozenset[str]]
    """The imported files, and the names imported from each."""
    text: str
    """The text without its import and export lines."""
    tops: frozenset[str]
    """All top-level names."""
    exported: frozenset[str]


def joined(folder: Path) -> str:
    """The joined file. Raises `Unjoinable`."""
    files = sources(folder)
    found = [fault for file in files.values() for fault in _faults(file, files)]
    if found:
        raise Unjoinable("\n".join(found))
    entry = files[ENTRY]
    public = {name for names in entry.takes.values() for name in names}
    parts = [MADE, entry.text]
    for file in files.values():
        if file is not entry:
            parts += [f"\n// --- {file.name}\n\n", _within(file, public)]
    return "".join(parts)


def sources(folder: Path) -> dict[str, Source]:
    """The direct and indirect imports of `ENTRY`, each file after those it imports. Raises `Unjoinable`."""
    placed: dict[str, Source] = {}

    def place(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise Unjoinable(f"circular imports: {' → '.join((*above[above.index(name) :], name))}")
        if name not in placed:
            file = _read(folder, name)
            for other in file.takes:
                place(other, (*above, name))
            placed[name] = file

    place(ENTRY, ())
    return placed


def _read(folder: Path, name: str) -> Source:
    try:
        text = (folder / name).read_text()
    except FileNotFoundError:
        raise Unjoinable(f"there is no {name}") from None
    takes: dict[str, frozenset[str]] = {}
    for how, names, path in _TAKEN.findall(text):
        if how != ("export" if name == ENTRY else "import"):
            raise Unjoinable(f"{name}: {how}s from {path}")
        other = normpath(join(name, "..", path))
        takes[other] = takes.get(other, frozenset()) | {each for each in re.split(r"[\s,]+", names) if each}
    text = _TAKEN.sub("", text).strip() + "\n"
    if wrong := _ANOTHER_FORM.search(text):
        raise Unjoinable(f"{name}: cannot be joined: {wrong[0]}")
    declared = _DECLARED.findall(text)
    exported = frozenset(each for export, each in declared if export)
    return Source(name, takes, text, frozenset(each for _, each in declared), exported)


def _within(file: Source, public: Iterable[str]) -> str:
    """A file's text in the joined file: without its head comment, and with only public names exported."""
    text = _HEAD.sub("", file.text, count=1)
    return _DECLARED.sub(lambda found: found[0] if found[2] in public else found[0].removeprefix("export "), text)


def _faults(file: Source, files: Mapping[str, Source]) -> Iterator[str]:
    """Anything that keeps a file from working as a module, or from sharing a scope with the others."""
    taken = {name: whose for whose, names in file.takes.items() for name in names}
    mentioned = set(_MENTIONED.findall(_code(file.text)))
    for name, whose in sorted(taken.items()):
        if name not in files[whose].exported:
            yield f"{file.name}: {whose} does not export {name}"
        elif name not in mentioned and file.name != ENTRY:
            yield f"{file.name}: imports {name} from {whose} but does not use it"
    for other in files.values():
        if other.name != file.name:
            yield from (
                f"{file.name}: {name} is also a name of {other.name}" for name in sorted(file.tops & other.tops)
            )
            missing = (mentioned & other.tops) - file.tops - set(taken)
            yield from (f"{file.name}: uses {name} of {other.name} without an import" for name in sorted(missing))


def _code(text: str) -> str:
    """The text without comments, strings and regular expressions; of a template, only its expressions."""
    kept: list[str] = []
    open_braces: list[str] = []
    at = 0
    while found := _PIECE.search(text, at):
        kept += [text[at : found.start()], " "]
        at = found.end()
        if found["opened"]:
            open_braces.append("{")
        elif found["template"] or (found["closed"] and open_braces.pop() == "${"):
            end = _TEMPLATE_TEXT.match(text, at)
            assert end is not None, "unterminated template"
            at = end.end()
            open_braces += ["${"] if end[1] == "${" else []
    return "".join([*kept, text[at:]])


def main() -> None:
    JOINED.write_text(joined(SOURCES))


if __name__ == "__main__":
    main()

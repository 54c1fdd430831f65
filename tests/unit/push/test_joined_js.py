"""The JavaScript client is one file for a page, and many for a reader, which import one way: they make the one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.joined_js import COMMAND, ENTRY, JOINED, MADE, SOURCES, Unjoinable, joined, sources

LAYERS = (
    {ENTRY},
    {"client.js"},
    {"consumer.js", "publisher.js", "replies.js", "session.js", "subscription.js"},
    {"transports/http.js", "transports/websocket.js"},
    {"api.js", "lines.js", "numbering.js", "settling.js", "transports/connections.js", "transports/events.js"},
    {"delivery.js"},
    {"arguments.js", "backoff.js", "clock.js", "credential.js", "message.js", "options.js", "outgoing.js"},
    {"bodies.js"},
    {"errors.js"},
    {"config.js", "ids.js", "timers.js"},
)
"""Each takes from those below it alone, and not from its neighbours."""


def test_the_file_that_pages_load_is_what_its_source_makes() -> None:
    assert JOINED.read_text() == joined(SOURCES), f"make it anew: {COMMAND}"


def test_every_file_of_the_source_has_a_layer_and_is_joined() -> None:
    there = sorted(path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.js"))
    assert there == sorted(name for layer in LAYERS for name in layer)
    assert there == sorted(sources(SOURCES))


def test_imports_go_one_way() -> None:
    depth = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}
    upward = [
        f"{file.name} takes from {other}"
        for file in sources(SOURCES).values()
        for other in file.takes
        if depth[other] <= depth[file.name]
    ]
    assert upward == []


def write(folder: Path, **files: str) -> Path:
    """A source; its entry exports `go` of `go.js`, unless it is among the files."""
    for name, text in ({"pushq": '/** Goes. */\n\nexport {go} from "./go.js";\n'} | files).items():
        (folder / f"{name}.js").write_text(text)
    return folder


GO = 'import {one} from "./one.js";\n\nexport function go() {\n  return one;\n}\n'


def test_joined_files_stand_behind_what_they_take_and_export_what_is_public(tmp_path: Path) -> None:
    folder = write(tmp_path, go=GO, one="/** One. */\n\n/** 1. */\nexport const one = 1;\n")
    assert joined(folder) == (
        f"{MADE}/** Goes. */\n"
        "\n// --- one.js\n\n/** 1. */\nconst one = 1;\n"
        "\n// --- go.js\n\nexport function go() {\n  return one;\n}\n"
    )


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"go": GO}, "there is no one.js"),
        (
            {"go": GO, "one": 'import {go} from "./go.js";\n\nexport const one = go;\n'},
            "circular imports: go.js → one.js → go.js",
        ),
        ({"go": GO, "one": "const one = 1;\n"}, "go.js: one.js does not export one"),
        ({"go": GO, "one": "export const one = 1;\nconst go = 3;\n"}, "go.js: go is also a name of one.js"),
        (
            {"go": GO, "one": "export const one = 1;\nexport default one;\n"},
            "one.js: cannot be joined: export default one;",
        ),
        ({"go": GO, "one": "export const one = go.a;\n"}, "one.js: uses go of go.js without an import"),
        ({"go": GO, "one": "export const one = `${[`a${go}`]}`;\n"}, "one.js: uses go of go.js without an import"),
        ({"go": GO, "one": "export const one = [...go];\n"}, "one.js: uses go of go.js without an import"),
        (
            {"go": GO.replace("return one", "return 1"), "one": "export const one = 1;\n"},
            "imports one from one.js but does not",
        ),
        ({"go": GO.replace("import", "export"), "one": "export const one = 1;\n"}, r"go.js: exports from ./one.js"),
    ],
)
def test_what_cannot_be_joined_is_refused_with_its_place(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    with pytest.raises(Unjoinable, match=fault.replace("(", r"\(")):
        joined(write(tmp_path, **files))


@pytest.mark.parametrize(
    "text",
    [
        "a.go",
        "this.#go",
        '"go"',
        "'go'",
        "`go`",
        "/go/u",
        "{go: 1}",
        "1; // go",
        "1; /* go */",
        "class { get go() {} }",
    ],
)
def test_a_word_that_names_nothing_needs_no_import(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path, go=GO, one=f"export const one = {text};\n")
    assert f"const one = {text};" in joined(folder)

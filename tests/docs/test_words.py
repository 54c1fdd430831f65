"""No file speaks of the machine it was written on, or leaves a mark to come back to."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Written backwards, so that this file passes its own test.
UNWANTED = [word[::-1] for word in ("/krow/", "vneyp", "ipyp/tpo/", "ODOT", "EMXIF", "XXX ")]
_NOT_OURS = re.compile(
    r"(^|/)(\.(?!ci/|gitignore)[^/]*|__pycache__|node_modules|vendor|build|dist|artefacts|pushq-data|.*\.egg-info)(/|$)"
)


def _files(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        inside = Path(place).relative_to(root)
        folders[:] = [name for name in sorted(folders) if not _NOT_OURS.search((inside / name).as_posix())]
        ours = (Path(place, name) for name in sorted(files) if not _NOT_OURS.search((inside / name).as_posix()))
        yield from (path for path in ours if path.is_file())


def _findings(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: {word!r}"
        for path in _files(root)
        for text in [path.read_bytes().decode(errors="replace")]
        for word in UNWANTED
        if word in text
    ]


def test_no_file_names_a_place_of_one_machine_or_unfinished_work() -> None:
    assert _findings(ROOT) == []


def test_unwanted_word_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"see {UNWANTED[0]}notes")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "page.md").write_text(UNWANTED[0])
    assert _findings(tmp_path) == [f"page.md: {UNWANTED[0]!r}"]

"""`pushq usage collect`: files of several places in one, as often as wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.usage import collect as collecting
from gateway.usage.collect import Collected, SameFolder, collect
from gateway.usage.files import PART, UsageFolder
from gateway.usage.verify import verify
from tests.support.usage import span

FIRST_MS = 1_700_000_040_000


def written(path: Path, node: str, *spans: tuple[int, int]) -> Path:
    folder = UsageFolder(path, node)
    folder.open()
    for start, end in spans:
        folder.write("ledger", span(start, end, end, published=end - start), FIRST_MS + start)
    return path


def test_what_is_there_already_is_not_copied_again(tmp_path: Path) -> None:
    source, to = written(tmp_path / "a", "node-1", (0, 3), (3, 9)), tmp_path / "all"
    assert collect(to, [source]) == Collected(copied=2, known=0, removed=0)
    written(source, "node-1", (9, 12))
    assert collect(to, [source]) == Collected(copied=1, known=2, removed=0)
    assert not verify(to).broken


def test_a_place_that_there_is_not_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        collect(tmp_path / "all", [written(tmp_path / "a", "node-1", (0, 3)), tmp_path / "gone"])
    assert not (tmp_path / "all").exists()


def test_files_of_several_places_come_together(tmp_path: Path) -> None:
    sources = [written(tmp_path / name, name, (0, 3)) for name in ("node-1", "node-2")]
    collect(tmp_path / "all", sources)
    assert verify(tmp_path / "all").files == 2


def test_one_that_was_written_again_with_more_is_kept_beside_the_first(tmp_path: Path) -> None:
    source, to = written(tmp_path / "a", "node-1", (0, 3)), tmp_path / "all"
    collect(to, [source])
    folder = UsageFolder(source, "node-1")
    rows = [*span(0, 3, 3, published=3), *span(3, 5, 5, published=2)]
    folder.write("ledger", rows, FIRST_MS, 1)
    assert collect(to, [source]).copied == 1 and collect(to, [source]).copied == 0
    report = verify(to)
    assert report.files == 2 and not report.broken
    assert next(iter(report.logs.values())).totals["published"] == 5


def test_an_interrupted_run_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = written(tmp_path / "a", "node-1", (0, 3), (3, 9), (9, 12)), tmp_path / "all"
    write, calls = collecting.write_durably, iter([True, False])

    def fails(path: Path, data: bytes) -> None:
        if not next(calls):
            path.with_name(path.name + PART).write_bytes(data[:5])
            raise OSError("the disk is gone")
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "write_durably", fails)
        with pytest.raises(OSError, match="gone"):
            collect(to, [source], moves=True)
    assert len(list(source.glob("*.gz"))) == 2, "only what is safe was removed"
    assert collect(to, [source], moves=True).copied == 2
    assert not verify(to).broken and not list(source.glob("*.gz"))


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    source = written(tmp_path / "a", "node-1", (0, 3))
    (source / "notes.txt").write_text("mine")
    collect(tmp_path / "all", [source], moves=True)
    assert [path.name for path in source.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("link", [False, True])
def test_files_that_are_where_they_are_to_be_stay_there(tmp_path: Path, link: bool) -> None:
    source = written(tmp_path / "a", "node-1", (0, 3))
    to = tmp_path / "b"
    if link:
        to.symlink_to(source)
    with pytest.raises(SameFolder, match="itself; choose another one"):
        collect(to if link else source, [source], moves=True)
    assert verify(source).files == 1

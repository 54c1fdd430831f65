"""The runner of pages notices what a reader would notice."""

from pathlib import Path

from tests.support.doc_pages import run_page, steps_of


def _page(*lines: str, kind: str = "console") -> str:
    return "\n".join(["# A page", "", f"```{kind}", *lines, "```", ""])


def test_page_that_prints_what_it_shows_passes(tmp_path: Path) -> None:
    page = _page("$ echo one; echo two", "one", "two", "$ true", "$ echo id=42", "id=…")
    assert run_page(page, tmp_path) == []


def test_page_that_prints_something_else_fails_with_its_line(tmp_path: Path) -> None:
    [wrong] = run_page(_page("$ echo one", "one", "$ echo two", "three"), tmp_path)
    assert wrong.startswith("line 6: 'echo two' printed\ntwo")


def test_command_that_fails_fails_the_page_whatever_it_prints(tmp_path: Path) -> None:
    [wrong] = run_page(_page("$ echo one; false", "one"), tmp_path)
    assert "ended with 1" in wrong


def test_ellipsis_alone_on_a_line_stands_for_any_lines_and_inside_for_a_part_of_one(tmp_path: Path) -> None:
    assert run_page(_page("$ seq 5", "1", "…", "5"), tmp_path) == []
    assert run_page(_page("$ seq 5", "1", "2…", "5"), tmp_path) != []
    assert run_page(_page("$ echo silent is not", "$ true"), tmp_path) != []


def test_commands_and_programs_of_a_page_share_a_folder_in_order(tmp_path: Path) -> None:
    page = _page("$ name=ann") + _page("open('made', 'w').write('by python')", kind="python")
    assert run_page(page + _page("$ cat made; echo \\", "  for $name", "by pythonfor ann"), tmp_path) == []


def test_page_that_leaves_early_is_told_from_one_that_ends(tmp_path: Path) -> None:
    [wrong] = run_page(_page("$ echo bye", "bye", "$ exit 0", "$ echo unreached"), tmp_path)
    assert wrong.startswith("line 6: the page stopped here")


def test_blocks_of_other_kinds_are_not_run() -> None:
    assert steps_of(_page("$ rm -rf everything", kind="sh")) == []

"""What is compiled is put into a zip file of packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.tools.zips import add_compiled


def test_what_was_added_is_imported_in_place_of_its_source_and_the_rest_as_before(tmp_path: Path) -> None:
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("parcel/__init__.py", "")
        made.writestr("parcel/one.py", "def where():\n    raise ValueError('here')")
        made.writestr("parcel/two.py", "")
    add_compiled(path, [f"{path}/parcel/one.py"])
    program = (
        "import traceback, parcel.one, parcel.two; print(parcel.one.__file__, parcel.two.__file__)\n"
        "try: parcel.one.where()\nexcept ValueError: traceback.print_exc(file=__import__('sys').stdout)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=True
    ).stdout
    assert told.splitlines()[0] == f"{path}/parcel/one.pyc {path}/parcel/two.py"
    assert f'File "{path}/parcel/one.py", line 2, in where' in told, "what fails there is told with its source"
    assert [one.name for one in tmp_path.iterdir()] == ["packed.zip"]

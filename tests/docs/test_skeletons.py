"""The skeletons of docs/extending.md work, and touch as many files as the page says.

They are put into a copy of the package and of its tests, and their own tests run there, in another
process, because this one has the package as it is.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
NEW_FILE = re.compile(r"^```python\n# (?P<path>\S+\.py)\n(?P<text>.*?)^```", re.DOTALL | re.M)
CHANGE = re.compile(r"^```diff\n--- (?P<path>\S+)\n(?P<text>.*?)^```", re.DOTALL | re.M)


class Section(NamedTuple):
    """A section of the page: files to be written, and changes of others, in hunks."""

    new: dict[str, str]
    changed: dict[str, list[str]]

    @property
    def touched(self):
        return {path for path in (*self.new, *self.changed) if path.startswith("pymc_apm/")}

    @property
    def tests(self):
        return [path for path in self.new if path.startswith("tests/")]


def sections():
    found = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        new = {match["path"]: match["text"] for match in NEW_FILE.finditer(part)}
        changed = {match["path"]: match["text"].split("@@\n") for match in CHANGE.finditer(part)}
        found[part.splitlines()[0]] = Section(new, changed)
    return found


SECTIONS = sections()


def replaced(text, hunk):
    """Make a change: what it leaves and takes away must be there once."""
    lines = hunk.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    assert text.count(old) == 1, f"this is there {text.count(old)} times:\n{old}"
    return text.replace(old, "".join(line[1:] or "\n" for line in lines if line[0] in " +"))


@pytest.fixture(scope="module")
def changed_package(tmp_path_factory):
    """Return a folder with the package and its tests after all changes of the page."""
    folder = tmp_path_factory.mktemp("skeletons")
    for name in ("pymc_apm", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    for section in SECTIONS.values():
        for path, text in section.new.items():
            assert not (folder / path).exists()
            (folder / path).write_text(text)
        for path, hunks in section.changed.items():
            for hunk in hunks:
                (folder / path).write_text(replaced((folder / path).read_text(), hunk))
    return folder


def test_the_page_says_how_many_files_are_touched():
    table = re.findall(r"^\| \[.*?\]\(#(.*?)\) \|.*\| (\d+) \|$", PAGE.read_text(), re.M)
    counted = {
        title.lower().replace(" ", "-"): str(len(section.touched))
        for title, section in SECTIONS.items()
    }
    assert dict(table) == counted
    assert [counted[title] for title in ("an-update-of-u", "a-step")] == ["2", "3"]


def run_tests(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_skeletons_pass_their_tests(changed_package):
    """In one process for all of them: to import PyMC takes longer than most of these tests."""
    paths = []
    for section in SECTIONS.values():
        assert section.tests
        documented = [path for path, text in section.new.items() if ">>>" in text]
        paths += [*section.tests, *documented]
    run_tests(changed_package, *paths)


@pytest.mark.slow
def test_the_skeleton_of_a_step_can_be_compiled(changed_package):
    run_tests(changed_package, "-m", "slow", *SECTIONS["A step"].tests)


def test_a_change_that_does_not_fit_is_noticed():
    with pytest.raises(AssertionError, match="there 0 times"):
        replaced("a\nb\n", " c\n+d\n")

"""What the release says of itself agrees wherever it is said."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("CITATION.cff", r"^version: (\S+)$"),
        ("CHANGELOG.md", r"^## \[(\d\S+)\]"),
        ("docs/references.md", r"^  version = \{(\S+)\}$"),
    ],
)
def test_the_version_is_the_same_everywhere(path, pattern):
    found = re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)
    assert found and found[1] == PROJECT["version"]


def test_the_extras_are_there():
    assert {"examples", "docs", "test", "dev"} <= set(PROJECT["optional-dependencies"])


def test_the_package_is_typed():
    assert (ROOT / "pymc_apm" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_both_papers_and_software_have_a_citation_key():
    references = (ROOT / "docs" / "references.md").read_text()
    assert re.findall(r"^@\w+\{(\w+),", references, re.MULTILINE) == [
        "murray2016pseudo",
        "pymc_apm",
    ]


def test_every_link_in_the_readme_leads_somewhere():
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert target.startswith("https://") or (ROOT / target).exists(), target

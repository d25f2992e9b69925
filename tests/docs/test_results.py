"""Tables of the documentation have the numbers that a command wrote to a file in docs/results.

A comment before a table names the file and says how a row is made from a record:

    <!-- results: toy_gaussian
    | {method} | {evals_per_draw:.2f} |
    -->

Every row of the table must be what this makes of one of the records; bold type does not count. The
page names the command that wrote the file.
"""

import json
import re
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PATTERN = re.compile(
    r"^<!-- results: (?P<name>\w+)\n(?P<template>\|.*\|)\n-->\n+(?P<table>(?:\|.*\n)+)", re.M
)


class Table(NamedTuple):
    """A table of a page, the file that it was made from, and how."""

    page: str
    name: str
    template: str
    rows: list[str]


class Cells(Formatter):
    """Format the values of a record; what it does not have is left empty."""

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        return kwargs.get(key)

    def format_field(self, value: Any, format_spec: str) -> str:
        return "" if value is None else super().format_field(value, format_spec)


def plain(row: str) -> list[str]:
    """Return the cells of a row without spaces and bold type."""
    return [cell.strip().strip("*").replace("−", "-") for cell in row.strip().strip("|").split("|")]


def tables() -> list[Table]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        Table(
            page.relative_to(ROOT).as_posix(),
            match["name"],
            match["template"],
            match["table"].splitlines()[2:],
        )
        for page in pages
        if not {"_build", "notebooks"} & set(page.parts)
        for match in PATTERN.finditer(page.read_text())
    ]


TABLES = tables()


def saved(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / f"{name}.json").read_text()))


def unfounded(table: Table, records: list[dict[str, Any]]) -> list[str]:
    """Return the rows that no record makes."""
    made = [plain(Cells().vformat(table.template, (), record)) for record in records]
    return [row for row in table.rows if plain(row) not in made]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.page}-{table.name}")
def test_every_number_of_a_table_is_in_the_file_that_the_command_wrote(table):
    assert table.rows
    records = saved(table.name)["records"]
    made = "\n".join(Cells().vformat(table.template, (), record) for record in records)
    assert unfounded(table, records) == [], f"{table.name}.json makes these:\n{made}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.page}-{table.name}")
def test_the_page_names_the_command(table):
    page = (ROOT / table.page).read_text()
    scripts = {run["command"].split()[1] for run in saved(table.name)["made_by"]}
    assert all(f"python {script}" in page for script in scripts), scripts


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_file_says_how_it_was_made_and_is_used(path):
    for run in saved(path.stem)["made_by"]:
        script = ROOT / run["command"].split()[1]
        assert script.is_file()
        assert f"docs/results/{path.name}" in run["command"]
        assert {"seed", "seeds"} & set(run["settings"])
        assert {"pymc", "numpy"} <= set(run["versions"])
    assert path.stem in {table.name for table in TABLES}


def test_every_comment_about_results_is_understood():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "".join(p.read_text() for p in pages if not {"_build", "notebooks"} & set(p.parts))
    assert text.count("<!-- results:") == len(TABLES) > 0


def test_a_number_that_was_changed_is_noticed():
    table = TABLES[0]
    records = saved(table.name)["records"]
    digit = re.search(r"\d(?=\D*$)", table.rows[0])
    wrong = str((int(digit[0]) + 1) % 10)
    row = table.rows[0][: digit.start()] + wrong + table.rows[0][digit.end() :]
    assert unfounded(table._replace(rows=[row]), records) == [row]

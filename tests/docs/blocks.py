"""The code in pages of Markdown and in notebooks: how it is found, and run in a short time.

All blocks of a page that are marked as ``python`` run one after the other, as a reader would run
them. A comment before a block, ``<!-- not run -->``, leaves it out; one that begins with
``<!-- setup`` has code that the reader is spared. The blocks of a notebook are its cells with code.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pymc as pm

import pymc_apm as apm

PATTERN = re.compile(
    r"<!-- setup\n(?P<setup>.*?)-->|(?P<skip><!-- not run -->\s*)?^```python\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A piece of code and the line of the page where it begins."""

    code: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return what is to be run of a page, or of a notebook."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        return [Block("".join(c["source"]), 0) for c in cells if c["cell_type"] == "code"]
    found = []
    for match in PATTERN.finditer(text):
        group = "setup" if match["setup"] is not None else "code"
        if not match["skip"]:
            found.append(Block(match[group], text.count("\n", 0, match.start(group))))
    return found


def run(page: Path) -> dict[str, Any]:
    """Run the code of a page or a notebook, and return its variables."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        # Lines are those of the page, so that a traceback leads there.
        exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
    return names


def short_sample(sample):
    """Return ``pm.sample`` with other defaults: a few draws of two chains, in this process."""

    def sample_shortly(draws=15, **kwargs):
        kwargs = {"tune": 10, "chains": 2, "progressbar": False} | kwargs | {"cores": 1}
        draws, kwargs["tune"] = min(draws, 30), min(kwargs["tune"], 20)
        return sample(draws, **kwargs)

    return sample_shortly


def shorten(monkeypatch) -> None:
    """Make ``pm.sample`` short, whatever a page asks for, and reports that do not ask for draws."""
    monkeypatch.setattr(pm, "sample", short_sample(pm.sample))
    monkeypatch.setattr(apm, "sample", short_sample(apm.sample))
    monkeypatch.setattr("pymc_apm.diagnostics.report.DEFAULT_DRAWS", 200)

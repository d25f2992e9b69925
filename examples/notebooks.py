"""Execute the notebooks of this folder, or strip them of their outputs.

    python examples/notebooks.py run              # all, one after the other; nothing is written
    python examples/notebooks.py run quickstart   # one
    python examples/notebooks.py strip            # before a commit

Notebooks are stored without outputs, which would make changes hard to read. The documentation
executes them and shows what they print and draw.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def strip(path: Path) -> None:
    """Remove outputs, counts and what an editor has added, and write the notebook if it changes."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict({"tags": tags} if (tags := _tags(cell)) else {})
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    text = nbformat.writes(notebook, indent=1) + "\n"
    if text != path.read_text():
        path.write_text(text)
        print(f"stripped {path.name}")


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def run(path: Path) -> bool:
    """Execute a notebook; say how long it took, or where it failed."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    start = time.perf_counter()
    try:
        NotebookClient(nbformat.read(path, as_version=4), timeout=300).execute(cwd=str(FOLDER))
    except CellExecutionError as error:
        print(f"{path.name}: FAILED\n{error}", flush=True)
        return False
    print(f"{path.name}: {time.perf_counter() - start:.0f} s", flush=True)
    return True


def main() -> None:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("command", choices=["run", "strip"])
    options.add_argument("names", nargs="*", help="names without .ipynb; all if none is given")
    arguments = options.parse_args()
    paths = [FOLDER / f"{name}.ipynb" for name in arguments.names] or sorted(FOLDER.glob("*.ipynb"))
    if arguments.command == "strip":
        for path in paths:
            strip(path)
    elif not all([run(path) for path in paths]):
        sys.exit(1)


if __name__ == "__main__":
    main()

import subprocess
import sys
from importlib.metadata import version

import pytest

CODE = """
import sys
import time
start = time.process_time()
import pymc
middle = time.process_time()
before = set(sys.modules)
import pymc_apm
share = (time.process_time() - middle) / (middle - start)
heavy = (
    "matplotlib", "pandas", "arviz", "arviz_stats", "xarray", "numba", "scipy.special",
    "scipy.linalg", "scipy.optimize", "scipy.stats", "pymc_apm.compiled.vectorised",
)
print(share, [name for name in heavy if name in set(sys.modules) - before])
"""

LARGEST = {"5": 0.08, "6": 0.3}[version("pymc").partition(".")[0]]
"""What importing the package may add to the CPU time of importing PyMC, as a share of it.

It is 0.04 with PyMC 5, and 0.2 with PyMC 6, which is imported in a fraction of the time.
"""


def import_the_package():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    share, names = done.stdout.split(maxsplit=1)
    return float(share), names.strip()


def test_importing_the_package_imports_nothing_heavy():
    """PyMC may have imported them before, but all of them are imported when they are needed."""
    _, names = import_the_package()
    assert names == "[]"


@pytest.mark.slow
def test_importing_the_package_takes_little_time():
    import_the_package()  # which compiles it to byte code, if it is new
    assert min(import_the_package()[0] for _ in range(3)) < LARGEST

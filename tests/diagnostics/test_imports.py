import subprocess
import sys

CODE = """
import sys
import pymc
before = set(sys.modules)
import pymc_apm
heavy = ("matplotlib", "pandas", "arviz", "arviz_stats", "scipy.stats", "xarray")
print([name for name in heavy if name in set(sys.modules) - before])
"""


def test_importing_the_package_imports_nothing_heavy():
    """PyMC may have imported them before, but figures and tables are imported when needed."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr

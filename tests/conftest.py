"""Options for all tests."""

import os

# Steps run in Python unless a test, or who runs the tests, wants them compiled: to compile one may
# take ten seconds. `make test-compiled` runs the tests of the steps again with compiled ones.
os.environ.setdefault("PYMC_APM_COMPILE", "0")

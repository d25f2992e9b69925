"""Chains in compiled code: see :mod:`pymc_apm.compiled.program`.

Importing this package imports nothing: its modules need Numba, which takes long.
"""

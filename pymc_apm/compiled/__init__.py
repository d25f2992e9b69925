"""Chains in compiled code: see :mod:`pymc_apm.compiled.source`."""

"""Transitions of a chain: kernels put together, with what they learn while tuning.

Everything here is numpy only, and ordinary functions: Python runs them as they are, and Numba
compiles the same functions (:mod:`pymc_apm.compiled`). Figure 3 of the paper is
:func:`pymc_apm.adaptive.transition.u_then_theta`.
"""

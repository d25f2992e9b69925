"""Latent Gaussian models: a Gaussian approximation as the proposal of importance sampling.

Importing this package imports nothing: its modules need SciPy's linear algebra and Numba.
"""

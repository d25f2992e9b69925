"""Infinite series, truncated at random without bias, and what they are good for."""

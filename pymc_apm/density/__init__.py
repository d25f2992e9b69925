"""The log density of (theta, u), compiled from a model in stages."""

"""Models whose normaliser is unknown, and the Ising model as the standard one of them."""

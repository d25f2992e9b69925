"""State-space models: what a user says of one, and estimates of its likelihood."""

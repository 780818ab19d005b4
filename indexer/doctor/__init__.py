"""`pointsman doctor`: why an engine's events cannot be followed well, and what to do about it."""

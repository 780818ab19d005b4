"""The practices that keep prefixes whole, as commands: what breaks them, and what mends it."""

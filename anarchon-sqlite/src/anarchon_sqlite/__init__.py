"""SQLite as the store of anarchon."""

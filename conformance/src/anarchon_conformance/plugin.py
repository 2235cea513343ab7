"""The pytest plugin of the kit."""

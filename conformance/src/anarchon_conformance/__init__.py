"""The claim contract of anarchon as a test kit."""

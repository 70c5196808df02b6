"""The embedded demo scenes and the checks of a user's data."""

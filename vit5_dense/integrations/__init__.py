"""Adapters to other frameworks, each imported on demand only."""

"""Flags that several commands have."""

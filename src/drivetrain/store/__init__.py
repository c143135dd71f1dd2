"""Weights on this disk: what a MODEL refers to, where it is kept, how it is fetched whole. Knows no engine."""

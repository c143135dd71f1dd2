"""The endpoints that generate no text."""

"""The life of an engine after its start: watched, replaced when it fails, ended in time."""

"""Drivetrain: a model worker for language models. One strict contract, every engine."""

__version__ = "0.1.0"

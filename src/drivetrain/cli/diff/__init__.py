"""`drivetrain diff`."""

"""`drivetrain replay`."""

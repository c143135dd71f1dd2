"""`drivetrain bench`."""

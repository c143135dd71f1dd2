"""`drivetrain doctor`."""

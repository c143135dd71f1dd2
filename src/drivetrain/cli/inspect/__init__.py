"""`drivetrain inspect`."""

"""`drivetrain serve`."""

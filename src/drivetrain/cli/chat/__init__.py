"""`drivetrain chat`."""

"""`drivetrain conform`."""

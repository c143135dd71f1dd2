"""`drivetrain launch`: coding agents, set up for a model of ours."""

"""`drivetrain conform`: what the OpenAI API promises, asked of any server that speaks it. Needs no engine."""

"""`drivetrain conform`: whether a server keeps what the OpenAI API promises. Needs no engine."""

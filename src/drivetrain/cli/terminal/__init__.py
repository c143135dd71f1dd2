"""Input, output and interrupts of a terminal, and the boundary where errors end."""

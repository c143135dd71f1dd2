"""Every endpoint that generates no text."""

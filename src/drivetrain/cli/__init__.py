"""The command line. Standard library only, and nothing heavy is imported before a command needs it."""

"""The servers that ours is measured against: how each is installed, started, asked and stopped. See bench/README.md."""

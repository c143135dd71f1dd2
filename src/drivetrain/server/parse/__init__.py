"""From the bytes of a body to requests of the contract."""

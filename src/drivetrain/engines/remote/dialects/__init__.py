"""How to talk to each kind of upstream, one file each."""

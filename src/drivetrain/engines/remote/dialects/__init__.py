"""How each kind of upstream is asked and understood, one file each."""

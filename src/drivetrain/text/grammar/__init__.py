"""From a constraint to a grammar that one model's ids can be held to."""

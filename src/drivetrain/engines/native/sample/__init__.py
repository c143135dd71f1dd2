"""From logits to the next ids."""

"""From raw logits to the next ids, for the engines that hold logits: native and transformers."""

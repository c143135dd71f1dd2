"""Whether what receipts tell of comes out again, here or on another engine."""

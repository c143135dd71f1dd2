"""What engines share. It knows none of them."""

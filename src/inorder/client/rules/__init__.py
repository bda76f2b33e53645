"""What the client decides about routes, key maps, name servers and receipts. No I/O."""

"""What a consumer decides. No I/O."""

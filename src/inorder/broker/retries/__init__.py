"""Messages that a consumer gives back."""

"""Messages that a consumer could not handle and sends back for a later attempt."""

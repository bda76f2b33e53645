"""The client: sessions, typed requests, producers and consumers; asyncio."""

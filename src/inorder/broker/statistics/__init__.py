"""What operators ask about traffic, progress and queues: 303, 308, 315, 317, 321."""

"""The papers' algorithms: pure, and independent of the queue."""

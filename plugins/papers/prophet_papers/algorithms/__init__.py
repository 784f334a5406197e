"""The papers' algorithms: pure, and without any queue."""

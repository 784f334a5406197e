"""Values and the native queue: what everything else is made of, and knows nothing of it."""

"""Values and the native queue. Everything else is built on these; they import nothing of it."""

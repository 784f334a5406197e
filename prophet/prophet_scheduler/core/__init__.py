"""Values and the native queue. The rest of Prophet builds on this package, which imports nothing else of Prophet."""

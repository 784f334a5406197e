"""One folder an engine; installed as prophet.plugins."""

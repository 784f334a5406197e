"""An importable BytePS without its library: the names that front ends take over, and no more."""

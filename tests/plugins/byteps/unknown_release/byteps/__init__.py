"""An importable BytePS of a release that Prophet does not know: the names that front ends take over, and no more."""

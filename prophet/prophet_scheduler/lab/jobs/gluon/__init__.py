"""Job scripts in MXNet's Gluon; what moves their gradients is an engine's (engines)."""

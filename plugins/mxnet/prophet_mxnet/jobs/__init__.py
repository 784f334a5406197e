"""Job scripts in MXNet's Gluon; an engine (engines) moves their gradients."""

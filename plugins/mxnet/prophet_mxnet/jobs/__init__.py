"""Job scripts in MXNet's Gluon; an engine moves their gradients."""

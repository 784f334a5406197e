"""MXNet: Gluon under Prophet on BytePS, experiments in Gluon, and graphs of MXNet's models."""

"""The command `prophet coordinate`."""

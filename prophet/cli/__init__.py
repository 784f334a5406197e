"""The `prophet` command."""

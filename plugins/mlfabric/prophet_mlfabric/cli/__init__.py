"""The commands `prophet coordinate` and `prophet replicate`."""

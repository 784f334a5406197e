"""The algorithms of the papers, each in a folder of its own, without any queue."""

"""The algorithms behind the policies, without any queue."""

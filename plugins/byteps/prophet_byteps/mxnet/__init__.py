"""The MXNet front end."""

"""Job scripts in MXNet's Gluon, with BytePS or a KVStore."""

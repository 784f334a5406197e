"""MLfabric over BytePS's asynchronous servers: a worker's agent, and its transfers through BytePS."""

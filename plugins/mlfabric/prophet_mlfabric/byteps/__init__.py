"""MLfabric over BytePS's asynchronous servers: the agent of a worker, and what it says to BytePS."""

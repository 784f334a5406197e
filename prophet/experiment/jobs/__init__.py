"""Training scripts of the experiments. Each is an ordinary BytePS program and knows nothing of Prophet."""

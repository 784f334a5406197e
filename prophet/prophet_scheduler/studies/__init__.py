"""Systems that are not policies for the queue, each with a simulator of its own."""

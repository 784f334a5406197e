"""MLfabric (Viswanathan, Akella, arXiv:1907.00434): one scheduler for the updates of all workers of a job.

`network` says what is left of every NIC over time; `ordering`, `aggregation`, `replication` and `distribution` are the
paper's algorithms and `scheduler` runs them for each batch of updates: all pure. `messages` is what workers and the
coordinator say to each other, `coordination` decides the answers, `server` and `client` are its two ends on a network.
`lag` says when a replica of the model needs a copy, and `replica` has that copy's two ends.
It schedules whole updates of many workers, not one worker's gradients, so it is no policy for the queue.
`studies` trains on a virtual clock with the same algorithms.
"""

"""MLfabric (Viswanathan, Akella, arXiv:1907.00434): one scheduler for the updates of all workers of a job.

`network` has the bandwidth left on every NIC over time. `ordering`, `aggregation` and `replication` are the paper's
algorithms, and `scheduler` runs them on each batch of updates: all pure. `studies` trains with them on a virtual clock.

In real jobs, `messages` is the protocol between workers and coordinator, `coordination` decides the answers with
`ordering`, and `server` and `client` are its two ends on a network. `lag` decides when a replica of the model needs a
copy; `replica` keeps it.
MLfabric schedules whole updates of many workers, not one worker's gradients, so it is not a policy for the queue.
"""

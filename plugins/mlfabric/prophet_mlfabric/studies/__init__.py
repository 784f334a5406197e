"""MLfabric simulated: jobs of many workers on a virtual clock, scheduled by the algorithms of this package.

`cluster` trains with the paper's algorithms (using `settings`, `transports` and `sharing`), `training` has a real SGD problem
to train, and `tables` has the paper's results.
"""

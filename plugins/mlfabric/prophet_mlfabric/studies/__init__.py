"""MLfabric simulated: jobs of many workers on a virtual clock, scheduled by the algorithms of this package.

`cluster` trains with the paper's algorithms (`settings`, `wire`, `sharing`), `training` is a real SGD problem to train,
`tables` is what the paper reports.
"""

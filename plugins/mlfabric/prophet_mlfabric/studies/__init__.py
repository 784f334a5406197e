"""MLfabric simulated: jobs of many workers on a virtual clock, scheduled by the algorithms of this package."""

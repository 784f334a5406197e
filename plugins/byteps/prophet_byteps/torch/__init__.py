"""The PyTorch front end: gradients leave in backward, updates come as late as their next use."""

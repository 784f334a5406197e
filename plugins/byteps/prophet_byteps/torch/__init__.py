"""The PyTorch front end: gradients leave during backward, and a parameter is updated when it is next used."""

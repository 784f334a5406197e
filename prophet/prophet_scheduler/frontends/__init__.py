"""Front ends: what a training program sees, by framework, whatever engine moves the gradients."""

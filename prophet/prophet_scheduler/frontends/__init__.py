"""Front ends: the part that a training program sees, by framework and for any engine."""

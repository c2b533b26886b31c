"""Training one run: optimizers, precision, the loop; needs torch and numpy alone."""

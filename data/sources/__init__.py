"""Real data sets and texts, read from the packages that ship them."""

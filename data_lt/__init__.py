"""Long-tailed training sets from the images a user has on disk."""

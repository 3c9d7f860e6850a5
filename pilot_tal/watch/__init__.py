"""Runs in TensorBoard and Weights & Biases: read from the run directory, as the report is."""

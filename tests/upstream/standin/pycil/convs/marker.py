"""Marks the stand-in as a toolbox of convolutional networks."""

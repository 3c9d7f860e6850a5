"""Verification of our learners against recorded runs of the original ones."""

"""Recorded runs of the original learners, played through ours."""

"""The commands of `pilot-tal`, one a file."""

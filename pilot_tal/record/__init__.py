"""What a run leaves on disk: its record, its files, its logs."""

"""What every run has: a folder, a log, an interrupt, and an end."""

"""What was success, who said so, and when."""

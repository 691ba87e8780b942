"""What a reward model learns from: frames and windows, split by episode."""

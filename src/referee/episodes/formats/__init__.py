"""The formats at the edge: files in, `Episode` out, and back. Nothing of theirs leaks inward."""

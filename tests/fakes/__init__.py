"""Stand-ins for the seams between rooms."""

"""What the gates did, for people and for programs."""

"""A process killed at every step between "blob uploaded" and "record created"."""

"""Types: which Arrow types a field may have, schemas and codecs, and Python values to columns and back."""

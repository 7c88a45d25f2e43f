"""Types: the Arrow types of fields, schemas and codecs, and conversions between Python values and columns.

Promises: accepted types are preserved by every input and output; a schema equals its written form.
"""

"""The options of `format("persist")`: what each means, and what is refused.

Promises: every option is checked, and one that is unknown or does not belong here is refused.
"""

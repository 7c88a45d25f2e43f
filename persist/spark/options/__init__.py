"""The options of `format("persist")`: what each means, and what is refused."""

"""Collections as names in Spark SQL: views, table functions, and sources with names of their own.

Promises: a name reads what the functions read; a name that cannot be told apart is refused.
"""

"""Collections as names in Spark SQL: views, table functions, and sources with names of their own."""

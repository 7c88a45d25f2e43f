"""The forms of rows in files that the command line reads and writes, and what the end of a name says about them."""

READ = ("csv", "json", "parquet", "arrow")
WRITTEN = ("table", *READ)
BY_SUFFIX = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".arrow": "arrow",
    ".arrows": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip

"""How much one answer to the page may hold or take."""

LIST_MAX = 200  # Collections, or rows of contents, in one answer.
ROWS_MAX = 1000  # Updates in one answer.
OFFSET_MAX = 100_000  # Contents are read from their beginning, so nobody turns further pages than this.
UPDATES_READ_MAX = 2_000_000  # Updates that may be read and sorted for one answer.
MEMORY_BUDGET = 16 << 20  # Of the client: so the slices are small of which a page of contents needs the first.
PARTS_DRAWN_MAX = 1500
LINEAGE_MAX = 10_000  # Collections whose definitions are looked at, once, for the picture of what reads what.
VIEWS_DRAWN_MAX = 200
RECORDS_READ_MAX = 600  # For the picture of commits.
MINUTES = 60
LISTENERS_MAX = 32
CONNECTIONS_MAX = 128
REQUEST_S = 10.0  # How long a request may take to come.
ANSWER_S = 30.0  # How long an answer may wait for somebody to take some of it.
HEADER_BYTES_MAX = 16 << 10

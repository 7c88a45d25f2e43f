"""SQL over collections by DuckDB: queries that read, and statements that change one collection.

Promise: a query reads each collection as of one time, all at one point of the log; a statement changes
one collection in one commit, on exactly the contents that it has read. The text of a query can read collections, and no
other data that the process's user may read. Views, which are kept up to date, are in `persist.sql`.
"""

from persist.compute.query.copying import copy_rows
from persist.compute.query.databases import QueryLimits
from persist.compute.query.definition import Definition, classify_statement
from persist.compute.query.parsing import walk_parts
from persist.compute.query.result import QUERIES_MAX, AsOf, Queries, QueryResult, check_is_query
from persist.compute.query.statements import Outcome, execute
from persist.compute.query.tables import Path, add_functions, match_collection, quote_name, quote_text
from persist.compute.query.time_windows import check_lengths, find_windowed_table, is_time_window, list_arguments
from persist.compute.query.transaction import ServedSql, Transaction

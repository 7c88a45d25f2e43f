"""Updates as numbers: times and their order, values as int64 words, and batches of many updates in one sorted matrix.

Promise: equal values have equal words within one program, and a batch is consolidated: no record and time occurs twice,
and no diff is zero.
"""

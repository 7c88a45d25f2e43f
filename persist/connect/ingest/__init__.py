"""Sources: copy folders of files, databases and topics to collections, each change exactly once.

Promises: data and the position of the source are one commit, so a crash loses and repeats nothing. A source is
acknowledged only after its data is durable. The size of a batch bounds the memory, and a slow store slows the source
down. If a source has positions, they are the times, and it resumes at `upper`. No password is in a message, a log or a
location.
"""

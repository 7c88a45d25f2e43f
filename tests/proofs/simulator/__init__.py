"""One simulator of everything that clients do to a location, under faults, races, deaths and pauses.

One language     `language.py` draws steps from a seed. A step is plain data: which client makes which call, what
                 storage does to its requests, at which request it is stopped or dies. Any part of a list of steps can
                 be run. `players.py` turns steps into calls of the library; `calls.py` makes them and notes how they
                 end, and `spelling.py` turns what they take and give into plain data.
One history      `history.py`: what was called and answered, and each record of the log with the moment it came. It is
                 plain data; nothing of the library is in it. `log_reader.py` reads records as the format says, and
                 `assigned.py` holds the times that futures told against those of the log.
One judge        `judge.py` replays the log in the model of all suites (`tests/support/model.py`), by `replay.py`, with
                 `versions.py` and `physical.py`. `effects.py` says what calls want to have done, `expectations.py`
                 what they may be answered. It says what is wrong: something acknowledged is missing, something refused
                 is there, a doubtful call happened in part, a sealed time reads differently, a hold was passed, a blob
                 was deleted under a reader. It shares no code with the library.
Invariants       After every call of the store (`standing.py`): what the newest checkpoint and the records after it name
                 exists, the log is one chain (`chain.py`), a checkpoint names what the log says, what open claims
                 read exists, and so do the records that were acknowledged.

Schedulers differ in who decides what happens when:

shuffle.py       The heart. Each client has a thread, and `baton.py` lets one thread run at a time: the same seed is
                 the same run, in a fresh process.
                 Every request, sleep and wait is a point where another thread may go on, a thread or a
                 whole client may be stopped for moments or hours of virtual time, a request may fail, happen without
                 an answer, or arrive late, and a client may die. `baton.py` says what is not controlled.
players.Run      One thread makes all calls in turn: on files, and with servers between clients (`served.py`).
processes.py     Real processes on a folder or a bucket, all at once, killed and stopped by signals at requests that
                 the steps name and at moments that nobody chose. A record then has an earliest and a latest moment.

`campaign.py` runs episodes. What fails is printed with its seed and the shortest list of steps that still fails
(`shrink.py`). `plants.py` puts faults into the library, each of which a stated seed must find. `scripts/soak simulator`
runs episodes for as long as one likes, `scripts/soak processes` the real ones.

Power cuts have tests of their own, `tests/blob/power_cuts`, which use the same history and judge.
"""

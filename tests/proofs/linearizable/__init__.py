"""Whether the answers that clients got can be put into one order, without looking at the log.

The simulator's judge knows the log. Here only calls and answers are known, with the moments between which each call was
under way, as Porcupine and Elle have it:

    specification.py  what each call does to a location and answers, one call after the other
    search.py         is there an order of all calls, which keeps that of calls that do not overlap, with these answers?
                      (Wing and Gong's search, with Lowe's memory of what was tried)
    cycles.py         for long histories: which call must come before which, and is there a cycle across collections?
    drawn.py          calls from a seed
    toy.py            a location in memory with eleven faults, each of which has to be found
    real.py           clients in threads or processes on a folder, and what they were answered
"""

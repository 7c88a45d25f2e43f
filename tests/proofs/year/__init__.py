"""A year in the life of one location, in the time that its work takes: `scripts/soak year`.

Suites show that a call does what it should. This shows what only age shows: memory that grows, objects that stay,
operations that slow down. Nothing is shortened. Leases, grace and retention have the defaults of the library, and are
met, because all clients and the store share a clock that moves only when the scenario lets it.

The store        A folder on a file system in memory, `DatedFiles`: the production store for files, without fsync. It
                 dates its files by the shared clock, and can be given a size beyond which it is full.
The writer       One client that is open all year. Commits come at random moments. Of those to plain collections, nine
                 of ten go to twenty hot ones. These get retractions and insertions, keyed collections upserts and
                 deletions, and some commits are of several collections. Contents do not grow, so growth is a fault.
The maintainer   A second client that is open all year, and does every six hours what `persist maintain` does, by the
                 function behind that command: it refreshes views, compacts, and collects garbage.
Readers          Short-lived ones every day: a client opens, reads, and closes. A consumer follows a collection by name
                 all year. Every ten days, a reader dies with a snapshot open, and its lease has to run out.
The days         Collections are dropped and created every day. On stated days (`scenario.CALENDAR`), schemas evolve,
                 records are erased, the disk is full, the location is lost and comes back from its backup of that
                 morning, and the format is upgraded: the year begins with a location of an older release.
The books        `books.py` is the model: what each collection holds, and held on evenings that can still be read. It
                 shares no code with the library. Answers are compared every day for some collections, and in the end
                 for all of them, with each view and what the consumer has made of its changes.

Bounds are assertions, each looked at when a day ends, and memory at the end of the year (`bounds.py`):

memory     A line through the resident bytes of all days after the first tenth rises by less than 5%.
storage    Objects, their bytes, and the updates in parts are at most 1.6 times what is live or what retention keeps.
           `census.py` finds out by the JSON of the store, by the documents and by the books what that is.
speed      Of no operation, the 99th percentile of a span of days is above three times its median of the first day. This
           counts processor time of the process, because others use the machine, too. A yardstick, which does work
           that is always the same, tells how much the machine adds to a 99th percentile; so much more is allowed.

The first eight days are not measured for speed, and the first day is the one after them: a week of retention
has to pass before anything can stay as it was.

answers    None is wrong, and nothing fails that should not.

The first bound that breaks ends the run, with the day and by how much; with `--go-on`, only a wrong answer does.
`plants.py` has a fault for each of them.
"""

"""The protocols of the log as small state machines, and an explorer that visits each state of them.

    explorer.py     all states, breadth first; what is wrong is printed with one of the shortest ways to it
    committing.py   put-if-absent of the next slot, and answers that are lost
    truncating.py   slots that become free again, and clients that slept
    uploading.py    uploads that no record names
    taking_over.py  checkpoints that take over what others name, and collectors
    leasing.py      claims of readers, compaction and collection
    relaying.py     commits through a server that may die

A model says what the code does, so it proves the protocol and not the code: the simulator runs the code. Each model has
faults that can be planted, and is worth something only because it finds them. `docs/inside/proof.md` has the counts.
"""

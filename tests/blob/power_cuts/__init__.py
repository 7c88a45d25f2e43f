"""Proof that a folder keeps what it acknowledged, whatever moment its machine loses power at.

recorder.py   the system calls that a FileBlob makes, written down
disk.py       what a file system may hold after a power cut at any moment of such a recording
cuts.py       stories for the two above, and what must be true after each cut
mutants.py    wrong ways to write files, which must be found
"""

"""Proof that nothing acknowledged is lost and nothing half done is seen, whatever moment a process or machine dies.

story.py        calls to make, and the model that says what they come to
child.py        a process that makes calls until it is killed; forked from a warm one
checker.py      what a location holds after a crash, compared with the model
kills.py        SIGKILL at random moments, over and over on the same locations
steps.py        SIGKILL before and after each call to the store that a scripted story makes
recorder.py     the system calls that a FileBlob makes, written down
disk.py         what a file system may hold after a power cut at any moment of such a recording
power_cuts.py   stories for the two above, and what must be true after each cut
soak.py         the same in any size
"""

"""Where updates enter a program and leave it: inputs in memory, persisted sources, and persisted outputs.

Promise: a source gives each update of its collection once; all outputs of a step are one commit; an output whose
collection holds something else than the program gave is refused.
"""

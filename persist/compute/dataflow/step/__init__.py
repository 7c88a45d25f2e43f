"""Steps that keep no state: they read of the past what touched keys hold, here or by tasks elsewhere.

Promise: what a step writes is what a running program writes, all outputs of it in one record. A plan without a form for
a step is left to a running program, and the reason is given.
"""

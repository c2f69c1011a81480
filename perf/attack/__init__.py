"""What strangers send, again and again, with seeds: ``python -m perf.attack`` lists the attacks.

Everything stays on this machine and on loopback. Each attack prints what came back, counted, and
the promises that must hold; the exit code is 1 if one does not.
"""

"""Whole clusters in virtual time: production object graphs, simulated networks and disks, faults from a seed.

    python -m headrace.testing.sim --seeds 200        so many histories
    python -m headrace.testing.sim --seed 17          one of them again

A history: nodes start on empty disks; producers (idempotent and transactional), copiers and a consumer group work while
processes are killed and paused, machines lose their power and with it what was not synced, disks fail, fill up and slow
down, clocks jump, the network delays, cuts and resets. Some have more: acknowledgements that wait for no disk, a topic
that dies and is made again, a compacted one, a group of the new protocol. Classes of faults can be added by name
(`--faults`, see `programs`). That is the safety phase: nothing that was
promised may be broken. Then everything heals, and in the liveness phase everything must go on. What is checked is in
`history` and `oracles`; a failing seed is replayed by the command that is printed.
"""

"""Histories of real processes whose disks go wrong, and an independent judge.

    python -m headrace.testing.disk_histories --nodes 3 --histories 40 --jobs 2
    python -m headrace.testing.disk_histories --nodes 1 --seed 17                  one of them again

A history: one node, or a cluster of three, of real `headrace serve` processes; idempotent and transactional producers,
a group, and a reader that reads everything again and again; faults that a seed chose (`plan`): kills, pauses, and harm
to the files below the broker, while it runs and while it is down (`damage`, `shim`). What is promised is checked as it
happens (`history`), and in the end by `judge.py`, which knows the clients' ledgers and the Kafka protocol, and shares
no code with the broker.
"""

"""Consume, transform, produce, exactly once: histories with real processes that are killed, and the checks that follow.

    python -m headrace.testing.exactly_once                    50 histories, seeds 1 to 50
    python -m headrace.testing.exactly_once --seed 17          one of them again
    python -m headrace.testing.exactly_once --proxy            answers and requests are lost, late and doubled as well
    python -m headrace.testing.exactly_once --nodes 3          on a cluster, whose nodes are killed, paused and cut off

A history: a broker process on disk, or several; one or two transformers, each a process of its own, that read `orders`
and write `bills` and `ledger` in transactions that carry their offsets; faults that a seed chose. What must hold in the
end is in `oracle`. The seed gives the plan of a history; what the machine makes of it differs a little from run to run.
"""

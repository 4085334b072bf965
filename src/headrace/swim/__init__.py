"""SWIM as a pure machine: who belongs to the cluster, who seems to be dead, and how far apart the clocks are."""

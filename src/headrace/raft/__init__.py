"""Raft as a pure machine: one log that a majority of servers agrees on, whatever crashes, gets lost or comes late."""

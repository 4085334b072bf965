"""Transactions as a pure replicated machine: who may write under which epoch, and how each transaction ends."""

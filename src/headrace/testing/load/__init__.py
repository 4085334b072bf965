"""Load for a broker, and what it costs: raw sockets with ready-made requests, real clients, latency, start-up, memory.

Rules:
- Loopback only. Every case is bounded in time; every process that is started is ended by its id, on Ctrl-C too.
- Durability levels are never mixed in one table: `synced` (flush=ack) and `cached` (flush=os) are measured apart.
- What a broker acknowledged is counted, never what was merely sent; an error code in an answer ends the run.
"""

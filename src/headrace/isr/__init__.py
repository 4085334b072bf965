"""The rules of replicas, pure: who is in sync, who leads, what is committed, and where two logs part."""

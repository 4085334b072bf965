"""Pipelines: a folder with a `pipeline.yml` and SQL or Python, run as Structured Streaming jobs by a runner of ours."""

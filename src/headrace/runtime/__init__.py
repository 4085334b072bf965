"""The only package that touches the operating system: loop, clock, disk, workers, logs."""

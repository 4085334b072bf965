"""Machines and storage made into a broker: image, controller, partitions, waiting, groups, service."""

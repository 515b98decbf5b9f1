"""Workloads: what is asked of a model under a strategy, and what is measured. One file each."""

from kvfrontier.registry import WORKLOADS

workload = WORKLOADS.register

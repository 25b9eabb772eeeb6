"""The file that ``allranks init`` writes."""

from __future__ import annotations

STARTER = """\
# A gang: nodes x ranks_per_node processes that start together, restart together and end together.
#   allranks run job.yaml      run it and follow it
#   allranks plan job.yaml     see what an engine would create
# Lines with '#' right before a name are options: take the '#' away to use one.

kind: Job
name: my-job                   # a-z, 0-9 and '-', at most 40 characters
nodes: 2
ranks_per_node: 2              # if left out: resources.gpus, else 1
run: python train.py           # every rank runs this, with RANK, WORLD_SIZE, MASTER_ADDR, ... set; no shell reads it
#launcher: torchrun            # native if left out; or torchrun, deepspeed, mpirun; once = one process a node
#workdir: /workspace           # if left out: this file's folder, or the image's
#env: {NCCL_DEBUG: INFO}

failure:
  restarts: 3                  # how often the whole gang is started again
  #start_timeout: 10m          # until every node must have reported
  #hang_timeout: 15m           # in a collective that some ranks never entered
  #grace: 30s                  # from SIGTERM to SIGKILL
  #deadline: 24h               # for the whole run
#logs: {limit: 1Gi}            # of each rank and attempt; beyond, the oldest part is cut

# For engines with containers.
#image: ghcr.io/acme/train:1
#env_from: [secret/hub-token]
#resources: {gpus: 2, cpu: 8, memory: 32Gi, shm: 16Gi}
#network: {rdma: required}     # auto if left out; required fails without RDMA; off
#volumes: [{claim: scratch, path: /scratch}]
#schedule: {namespace: team-a, queue: research}
"""

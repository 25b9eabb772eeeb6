"""What runs on every rank: needs torch and nothing of ours but ``bench.collectives`` and ``fabric``; Python 3.8."""

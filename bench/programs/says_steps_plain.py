"""As says_steps.py, without torch: its ranks meet over one socket each, and no import is measured."""

import os
import socket
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", where[1])) as listener:
        peers = [listener.accept()[0] for _ in range(world - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(where, 1)]
            break
        except OSError:
            time.sleep(0.02)
step = 0
while all(peer.send(b".") for peer in peers) and all(peer.recv(1) for peer in peers):
    print(f"step {step} at {time.time():.3f}", flush=True)
    step += 1
    time.sleep(0.1)

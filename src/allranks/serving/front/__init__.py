"""The process that speaks HTTP: it knows texts and requests; of the model only what rank 0 tells through a socket.

It is apart from the loop so that neither waits for the other's Python, and it outlives rank 0 for the moment that it
takes to tell every client what happened.
"""

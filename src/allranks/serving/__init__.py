"""One model, cut into as many pieces as the gang has ranks, answering HTTP on node 0.

``__main__`` is what every rank runs. Rank 0 also starts the process that speaks HTTP (``front/``). Only ``options``,
``folder``, ``key`` and ``probe`` are imported where torch may not be, and need nothing but the standard library.
"""

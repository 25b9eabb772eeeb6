"""Small scripts that look at what a script can see of its interpreter. A rank must see what plain python shows.

Each probe is the text of ``probe.py``; those with "torch" in the name import it.
"""

from __future__ import annotations

from textwrap import dedent

PROBES: dict[str, str] = {}


def probe(name: str, source: str) -> None:
    PROBES[name] = dedent(source)


probe(
    "arguments and what __main__ holds",
    """
    import sys, os
    print(sys.argv, __name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__)
    print(type(__builtins__).__name__, sorted(globals()))
    print(sys.path[0], sys.orig_argv, sys.flags, os.getcwd(), sys.executable, sys.prefix)
    """,
)
probe("the whole of sys.path, its hooks and finders", "import sys; print(sys.path, sys.path_hooks, sys.meta_path)")
probe(
    "nothing of ours in sys.modules or the environment",
    """
    import os, sys
    print([name for name in sys.modules if "allranks" in name or "sitecustom" in name])
    print({k: v for k, v in os.environ.items() if "allranks" in (k + v).lower()}, os.environ.get("PYTHONPATH"))
    """,
)
probe(
    "pickle of a __main__ class, also at exit",
    """
    import pickle, atexit
    class C:
        x = 3
    b = pickle.dumps(C())
    print(type(pickle.loads(b)).__module__)
    atexit.register(lambda: print("atexit", pickle.loads(pickle.dumps(C())).x, type(pickle.loads(b)) is C))
    """,
)
probe(
    "order at exit, globals alive, a thread that outlives main",
    """
    import atexit, threading, time, weakref
    g = ["alive"]
    class K: pass
    k = K(); weakref.finalize(k, print, "finalize")
    atexit.register(lambda: print("first registered", g))
    atexit.register(lambda: print("second registered", g))
    def late():
        time.sleep(.3); import __main__; print("late thread", g, __main__.g is g)
    threading.Thread(target=late).start()
    print("main ends")
    """,
)
probe("sys.exit(7)", "import sys; print('x'); sys.exit(7)")
probe("sys.exit('text')", "import sys; print('x'); sys.exit('some text')")
probe("sys.exit(None)", "import sys; print('x'); sys.exit(None)")
probe("sys.exit(259)", "import sys; sys.exit(259)")
probe("sys.exit(object)", "import sys; sys.exit(['a', 1])")
probe("ends without a newline", "import sys; sys.stdout.write('no newline')")
probe("an empty script", "")
probe(
    "uncaught exception with a cause",
    """
    def f(): raise ValueError("boom")
    try: f()
    except ValueError as e: raise RuntimeError("outer") from e
    """,
)
probe(
    "uncaught exception, own excepthook, its whole stack",
    """
    import sys, traceback
    def hook(t, v, tb): print("hook", t.__name__, traceback.extract_tb(tb), file=sys.stderr)
    sys.excepthook = hook
    1/0
    """,
)
probe("SyntaxError", "x = = 1\n")
probe("null byte in the source", "x = 1\0\n")
probe("no UTF-8, no declaration", "s = '\udce9'\n")
probe(
    "sys.exit in a thread",
    """
    import threading, sys
    t = threading.Thread(target=lambda: sys.exit(9)); t.start(); t.join(); print("after")
    """,
)
probe(
    "exception in a thread",
    """
    import threading
    t = threading.Thread(target=lambda: 1/0, name="T"); t.start(); t.join(); print("after")
    """,
)
probe("KeyboardInterrupt", "import os, signal, time; print('x'); os.kill(os.getpid(), signal.SIGINT); time.sleep(5)")
probe("SIGTERM", "import os, signal, time; print('x'); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)")
probe(
    "SIGTERM handled by the script",
    """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, lambda *a: sys.exit(143)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)
    """,
)
probe("SIGKILL", "import os; print('x', flush=True); os.kill(os.getpid(), 9)")
probe("SIGSEGV with faulthandler", "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)")
probe("os._exit(5)", "import os; print('lost?', flush=True); os._exit(5)")
probe("os.abort()", "import os; os.abort()")
probe(
    "signal handlers and mask",
    """
    import signal
    print({s.name: str(signal.getsignal(s)) for s in signal.Signals if s not in (9, 19)})
    print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.set_wakeup_fd(-1), signal.getitimer(signal.ITIMER_REAL))
    print([line for line in open("/proc/self/status") if line.startswith(("Sig", "Shd")) and "SigQ" not in line])
    """,
)
probe(
    "open descriptors",
    """
    import os
    print(sorted(f for f in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + f)))
    """,
)
probe(
    "environment in python and in C",
    """
    import os, ctypes
    g = ctypes.CDLL(None).getenv; g.restype = ctypes.c_char_p
    print(g(b"PROBE"), os.environ.get("PROBE"), g(b"RANK"), os.environ.get("RANK"), g(b"PYTHONPATH"))
    print(sorted(os.environ))
    """,
)
probe(
    "working folder, umask, limits, session, priority, cores",
    """
    import os, resource
    u = os.umask(0); print(os.getcwd(), oct(u), os.getsid(0) == os.getpid() == os.getpgrp(), os.nice(0))
    print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE))
    print(sorted(os.sched_getaffinity(0)))
    """,
)
probe(
    "main thread, collector, recursion limit",
    """
    import threading, gc, sys
    print(threading.current_thread() is threading.main_thread(), threading.main_thread().name, gc.isenabled())
    print(gc.get_threshold(), sys.getrecursionlimit(), len(threading.enumerate()), sys.getswitchinterval())
    """,
)
probe(
    "stack as the script sees it, to the outermost frame",
    """
    import inspect, sys
    print([(f.filename, f.function, f.lineno) for f in inspect.stack()], sys._getframe().f_back)
    """,
)
probe("faulthandler.dump_traceback", "import faulthandler; faulthandler.dump_traceback(all_threads=False)")
probe(
    "warnings at module level and from too deep",
    """
    import warnings
    warnings.warn("w1"); warnings.warn("deprecated", DeprecationWarning); warnings.warn("deep", stacklevel=9)
    """,
)
probe(
    "inspect.getsource, dataclass, type hints",
    """
    import inspect, dataclasses, typing
    @dataclasses.dataclass
    class D:
        x: 'int' = 1
    def f(a: 'D') -> int: return 1
    print(inspect.getsource(f).strip(), D(), typing.get_type_hints(f)['a'] is D, inspect.getmodule(f).__name__)
    """,
)
probe("import __main__ finds the script", "x = 5\nimport __main__; print(__main__.x, __main__.__file__)")
probe(
    "subprocess and asyncio",
    """
    import subprocess, asyncio, sys
    ask = "import signal; print(signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGINT).__name__)"
    print(subprocess.run(["true"]).returncode, subprocess.run([sys.executable, "-c", ask], capture_output=True).stdout)
    async def m():
        p = await asyncio.create_subprocess_exec("false"); return await p.wait()
    print(asyncio.run(m()))
    """,
)
probe(
    "a child of the script's own, waited for",
    """
    import os
    pid = os.fork()
    if not pid: os._exit(3)
    print(os.waitpid(pid, 0)[1]); print(os.system("exit 4"))
    """,
)
probe(
    "the command line in ps", "print(open('/proc/self/cmdline').read().split(chr(0)), open('/proc/self/comm').read())"
)
probe(
    "standard streams",
    """
    import sys
    print(repr(sys.stdin.read()), sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors, sys.stdout.errors)
    print(sys.stdout.name, sys.stdout.fileno(), sys.stdout.isatty(), sys.stdout is sys.__stdout__, sys.stdout.mode)
    """,
)
probe("input() at the end of file", "input('name? ')")
for method in ("fork", "spawn", "forkserver"):
    probe(
        f"multiprocessing by {method}",
        f"""
        import multiprocessing as mp, os, sys, concurrent.futures as cf
        if __name__ != "__mp_main__": print("top", __name__)
        def f(x): return x * x
        class C:
            def __init__(s, v): s.v = v
        def g(q): q.put((C(4), __name__, os.path.basename(sys.argv[0])))
        if __name__ == "__main__":
            ctx = mp.get_context("{method}")
            q = ctx.Queue(); p = ctx.Process(target=g, args=(q,)); p.start(); r = q.get(); p.join()
            print(r[0].v, r[1], r[2], type(r[0]) is C, p.exitcode)
            with ctx.Pool(2) as pool: print(pool.map(f, [1, 2, 3]))
            with cf.ProcessPoolExecutor(2, mp_context=ctx) as ex: print(list(ex.map(f, [4, 5])))
            with ctx.Manager() as m:
                d = m.dict(a=1); p = ctx.Process(target=d.update, args=(dict(b=2),))
                p.start(); p.join(); print(dict(d))
        """,
    )
    probe(
        f"torch DataLoader with workers by {method}",
        f"""
        import torch, torch.utils.data as d
        class DS(d.Dataset):
            def __len__(s): return 8
            def __getitem__(s, i): return torch.full((2,), float(i)) @ torch.ones(2, 2)
        if __name__ == "__main__":
            torch.ones(200, 200) @ torch.ones(200, 200)
            workers = {2 if method == "fork" else 1}
            for b in d.DataLoader(DS(), batch_size=4, num_workers=workers, multiprocessing_context="{method}"):
                print(b.sum().item())
        """,
    )
probe(
    "torch.multiprocessing.spawn",
    """
    import torch, torch.multiprocessing as mp
    def w(i, q): q.put((i, torch.ones(2).sum().item()))
    if __name__ == "__main__":
        q = mp.get_context("spawn").SimpleQueue()
        mp.spawn(w, (q,), nprocs=1); print(q.get())
    """,
)
probe(
    "torch backward, parallel work, seed, script, save and load",
    """
    import io, torch
    torch.set_num_threads(2)
    a = torch.ones(600, 600, requires_grad=True); (a @ a).relu().sum().backward()
    print(torch.initial_seed() > 0, 0 <= torch.rand(1).item() < 1, a.grad.sum().item(), torch.get_num_threads())
    class M(torch.nn.Module):
        def forward(s, x): return x
    b = io.BytesIO(); torch.save(M(), b); b.seek(0); print(type(torch.load(b, weights_only=False)) is M)
    torch.manual_seed(3); print(torch.rand(2), torch.randperm(5))
    import warnings; warnings.simplefilter("ignore")
    @torch.jit.script
    def f(x):
        return x + 1
    print(f(torch.ones(2)).sum().item())
    """,
)
probe(
    "torch.distributed alone with gloo",
    """
    import os, socket, torch, torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
    t = torch.ones(3); dist.all_reduce(t); print(t); dist.destroy_process_group()
    """,
)

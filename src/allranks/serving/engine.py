"""A serving rank from its start to its end: load, warm up, serve, drain.

Rank 0 speaks with the front, the process that has the HTTP port; the other ranks only follow its loop.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from allranks.serving import attention, folder, layers, peers, shard
from allranks.serving.folder import NOT_NOW, UNFIT, NotNow, Unfit
from allranks.serving.front import process
from allranks.serving.lockstep import Loop, Outcome, config_for
from allranks.serving.options import Options
from allranks.serving.pipe import Pipe

LAST_WORDS = 0.3
"""Seconds between telling the front that the gang is broken and ending: its clients get their errors meanwhile, and the
rank that broke it is seen to have ended first."""
FRONT_WAIT = 60.0
"""Seconds for the HTTP process to have its port and its tokenizer; the model takes longer."""
FRONT_SILENT = 20.0
"""Seconds without an answer of the HTTP process to the news after which the gang is given up: nobody can reach it."""
FIRST_ANSWER = 600.0
"""Seconds for one request at warm-up: kernels may be compiled for it."""
NEWS = 0.5
"""Seconds between two reports of how the loop does."""


class Front:
    """The HTTP process, as rank 0 sees it.

    It is forked: what it needs is imported here, and so in the zygote that later attempts are forked from. A fresh
    interpreter would let clients wait for its imports at every restart.
    """

    def __init__(self, options: Options) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            os.setsid()
            _keep_only(theirs.fileno())
            process.run(theirs, options)
        theirs.close()
        self.pipe = Pipe(ours)

    def end(self, timeout: float) -> int:
        """Wait for its end, which it was told of or has chosen itself; its exit code."""
        until = time.monotonic() + timeout
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                os.kill(self._pid, signal.SIGKILL)
                return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            time.sleep(0.02)  # a wait for a child has no timeout


def _keep_only(number: int) -> None:
    """Close what this process was given but the standard streams: somebody may wait for rank 0 to let go of it."""
    os.closerange(3, number)
    os.closerange(number + 1, os.sysconf("SC_OPEN_MAX"))


class NoFront:
    """Where there is nobody to tell: on every rank but 0."""

    def say(self, **message: Any) -> None: ...

    def flush(self, timeout: float) -> bool:
        return True

    def heard(self) -> Iterator[Any]:
        yield from ()


class Rank:
    """One rank of the gang. ``serve`` returns when the service has been told to end, and has."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.device = shard.device_of_rank()
        self.front = Front(options) if self.rank == 0 else None
        self.pipe: Pipe | NoFront = self.front.pipe if self.front else NoFront()
        self.loop: Loop | None = None
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ending = threading.Lock()
        self._up = threading.Event()
        self._heard = 0.0
        self._draining = self._is_over = False
        self._live: set[str] = set()
        self._warm: dict[str, threading.Event] = {}

    def serve(self) -> int:
        """Everything; returns what to exit with. Raises Unfit, NotNow, and peers.Gone when the ranks do not meet."""
        threading.excepthook = self._thread_died
        if self.front:
            threading.Thread(target=self._listen, name="front", daemon=True).start()
        began = time.monotonic()
        path = folder.fetch(self.options.model)
        facts = folder.look(Path(path))
        context = min(self.options.context or facts.context, facts.context)
        watch = self._start(path, facts, context)
        self._say(f"warming up after {time.monotonic() - began:.1f} s", state="warming up")
        if self.rank:
            return self._follow(watch)
        watch.arm(max(self.options.stall, 5 * self._warm_up(facts.vocabulary, context)))
        if not self._up.wait(FRONT_WAIT):
            raise NotNow(f"the HTTP process has no port or no tokenizer after {FRONT_WAIT:g} s; see what it said")
        self._hear_of_the_end()
        took = time.monotonic() - began
        self._say(f"ready after {took:.1f} s: {self.world} x {self.device.type}, {context} tokens", state="ready")
        self.pipe.say(op="ready", context=context, vocabulary=facts.vocabulary, pid=os.getpid())
        threading.Thread(target=self._report, name="news", daemon=True).start()
        return self._serve_until_told()

    def _follow(self, watch: peers.Watch) -> int:
        """Step along with rank 0 until it ends the loop."""
        watch.arm(10 * self.options.stall)  # rank 0 judges; this is for when it cannot
        assert self.loop is not None
        assert self.loop._generation_thread is not None  # start() made it
        self.loop._generation_thread.join()
        return 0

    def _hear_of_the_end(self) -> None:
        """From now on a signal is no longer the end: until rank 0 is ready there is nothing to bring to an end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._told.put(number))

    def _silence(self) -> float:
        return self.options.silence or (1.0 if self.device.type == "cuda" else 2.0)

    # ---- to the point of being ready

    def _start(self, path: str, facts: folder.Model, context: int) -> peers.Watch:
        """Meet the other ranks and have the loop run, watched."""
        how, why = folder.choose(facts, self.world, self.options.shard)
        self._say(f"loading {path}" + (f", cut by {how}: {why}" if self.world > 1 else ""), state="loading")
        shard.join(self.device, self.world)
        met = peers.connect(os.environ.get("MASTER_ADDR", "127.0.0.1"), self.world)
        watch = peers.Watch(met, self._silence(), lambda: self.loop.beats if self.loop else 0, self._broken)
        watch.start()
        try:
            self.loop = self._start_loop(path, how, met, context)
        except RuntimeError:  # what a collective raises whose peer is lost
            self._let_the_watch_speak()
            raise
        return watch

    def _start_loop(self, path: str, how: str, met: peers.Peers, context: int) -> Loop:
        options = self.options
        dtype = options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
        model = shard.load(path, how, dtype, self.device, context)
        self._say(f"attention: {attention.choose(model)}")
        whose = layers.choose(model)
        self._say(f"layers: {whose}")
        share = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        level = 0 if whose == layers.FUSED else options.compile
        config = config_for(model, context, options.concurrent, share, level=level)
        fewer = "lower limits.context or limits.concurrent, or serve it with more ranks"
        with (
            shard.in_memory(f"for the cache of {options.concurrent} x {context} tokens", fewer),
            torch.inference_mode(),
        ):
            loop = Loop(model, how, config, peers.Plans(met, self.rank), self._deliver, self._loop_broke)
            loop.warmup()
            if self.rank:
                self._hear_of_the_end()  # rank 0 may be ready soon, and says when it is
            loop.start()
        return loop

    def _warm_up(self, vocabulary: int, context: int) -> float:
        """Run requests of the sizes to come, until their answers are there; returns the longest step's seconds."""
        assert self.loop is not None
        chunk = int(self.loop.continuous_batching_config.max_batch_tokens or context)
        lengths = sorted({max(min(length, context - 4), 1) for length in (1, 64, 128, chunk)})
        prompts = [[1 + i % max(vocabulary - 2, 1) for i in range(length)] for length in lengths]
        plain, drawn = {"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9, "seed": 1}
        self._run_one(prompts[0], drawn)
        for prompt in prompts:
            self._run_one(prompt, plain)
        return max(self._run_one(prompt, plain) for prompt in prompts)  # by now all is compiled

    def _run_one(self, prompt: list[int], sampling: dict[str, Any]) -> float:
        assert self.loop is not None
        began, name = time.monotonic(), f"warm-{len(prompt)}"
        done = self._warm[name] = threading.Event()
        self.loop.add_request(prompt, request_id=name, max_new_tokens=4, streaming=True, eos_token_id=-1, **sampling)
        if not done.wait(FIRST_ANSWER):
            raise NotNow(f"a request of {len(prompt)} tokens was not answered within {FIRST_ANSWER:g} s of warm-up")
        return time.monotonic() - began

    # ---- serving

    def _serve_until_told(self) -> int:
        """Until somebody ends the gang. To who did not ask for that, it is no success: the code is a signal's."""
        number = self._told.get()
        with self._ending:  # what is broken drains no more
            self._draining = True
            self._say("draining", state="draining")
        self.pipe.say(op="drain")
        until = time.monotonic() + self.options.drain
        while self._live and time.monotonic() < until:
            time.sleep(0.05)  # the loop's thread takes them out one by one
        assert self.loop is not None
        self._is_over = True
        self.pipe.say(op="end")
        self.loop.stop(block=True, timeout=5, hard_stop=True)  # for what has not ended by now nobody waits
        self.pipe.flush(2)
        if self.front:
            self.front.end(5)
        return 128 + number

    def _listen(self) -> None:
        """What the front wants, until it is gone."""
        why = ""
        for message in self.pipe.heard():
            self._heard = time.monotonic()
            if message["op"] == "up":
                self._up.set()
            elif message["op"] == "add":
                self._add(message)
            elif message["op"] == "cancel":
                self._cancel(message["id"])
            elif message["op"] == "failed":
                why = message["why"]
        assert self.front is not None  # only then is there anything to hear
        if self._draining:
            self._live.clear()  # nobody is left to answer
        else:
            code = self.front.end(5)
            _print(why or f"rank 0: the HTTP process has ended with {code}")
            peers.leave(code if code > 0 else NOT_NOW)

    def _add(self, message: dict[str, Any]) -> None:
        assert self.loop is not None  # the front asks only once it was told of readiness
        name = message["id"]
        self._live.add(name)
        taken = self.loop.add_request(
            message["prompt"],
            request_id=name,
            max_new_tokens=message["max_tokens"],
            streaming=True,
            eos_token_id=message["eos"],
            **message["sampling"],
        )
        if taken is None:
            self._deliver([(name, [], True, "the service is ending")])

    def _cancel(self, name: str) -> None:
        assert self.loop is not None
        self.loop.cancel_request(name)
        self.loop.output_router.forget(name)
        self._live.discard(name)

    def _deliver(self, outcomes: list[Outcome]) -> None:
        """Called by the loop's thread once a step."""
        if self.rank:
            return
        told = []
        for name, tokens, over, error in outcomes:
            if name in self._warm:
                if over:
                    self._warm.pop(name).set()
                continue
            if over:
                self._live.discard(name)
            told.append([name, tokens, over, error])
        if told:
            self.pipe.say(op="out", out=told)

    def _report(self) -> None:
        """Tell the front how the loop does, which it answers, until the loop has ended."""
        loop = self.loop
        assert loop is not None  # it is told of once it runs
        looked = self._heard = time.monotonic()
        while (processor := loop.batch_processor) is not None:
            now = time.monotonic()
            if now - looked > FRONT_SILENT / 2:
                self._heard = now  # this process itself was held up
            if now - self._heard > FRONT_SILENT:
                self._broken(f"the HTTP process has said nothing for {FRONT_SILENT:g} s")
            looked = now
            scheduler = processor.scheduler
            self.pipe.say(
                op="news",
                beats=loop.beats,
                steps=loop.current_batch,
                running=len(scheduler.active_requests),
                waiting=len(scheduler.waiting_requests) + loop.input_queue.qsize(),
                cache=round(loop.in_use, 4),
            )
            time.sleep(NEWS)

    # ---- the end that nobody wanted

    def _thread_died(self, died: threading.ExceptHookArgs) -> None:
        """Whoever waited for that thread would wait for ever."""
        threading.__excepthook__(died)
        self._broken(f"thread {died.thread.name if died.thread else '?'} died: {died.exc_type.__name__}")

    def _loop_broke(self, error: BaseException) -> None:
        self._let_the_watch_speak()
        if not (self._is_over or self._follows_to_the_end):
            traceback.print_exception(error)
        self._broken(f"{type(error).__name__}: {error}")

    def _broken(self, reason: str) -> None:
        """Tell, and end this process; whoever comes second waits for the first to do it."""
        with self._ending:
            if self._is_over:
                return  # the others have ended before us, as they were told to
            if self._follows_to_the_end:
                peers.leave(128 + self._told.get())
            _print(f"rank {self.rank}: {reason}")
            self.pipe.say(op="broken", reason=reason)
            self.pipe.flush(LAST_WORDS)
            time.sleep(LAST_WORDS)
            peers.leave(NOT_NOW)

    def _let_the_watch_speak(self) -> None:
        """A peer that is lost breaks what we do with it too: then the watch ends this process, and says why better."""
        if self.world > 1:
            time.sleep(LAST_WORDS)
        with self._ending:
            pass

    @property
    def _follows_to_the_end(self) -> bool:
        """Whether this rank has been told to end, and waits for rank 0 to: if that dies before, it is no news."""
        return self.rank > 0 and not self._told.empty()

    def _say(self, text: str, state: str = "") -> None:
        if self.rank == 0:
            _print(text)
            if state:
                self.pipe.say(op="state", state=state, text=text)


def _print(text: str) -> None:
    print(f"serving: {text}", flush=True)


def run(options: Options) -> NoReturn:
    """Be one rank, and end the process: whatever ends it early is told, and holds it no longer."""
    try:
        code = Rank(options).serve()
    except (Unfit, NotNow, peers.Gone) as error:
        print(f"serving: {error}", file=sys.stderr, flush=True)
        code = UNFIT if isinstance(error, Unfit) else NOT_NOW
    except BaseException:  # noqa: BLE001 - the last rim: threads of libraries would not let the interpreter end
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    peers.leave(code)

"""Processes of pyspark's daemon: how they end when Spark leaves them, and what stays as it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from penstock.pipeline.spark_worker_idle_and_end import end_without_next_task, until_unread

pytest.importorskip("pyspark", reason="these tests need the extra `spark`")

AS_DAEMON = """
    import gc, os, socket, sys, threading
    from importlib.machinery import ModuleSpec

    sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
    from penstock.pipeline.spark_worker_idle_and_end import end_without_next_task, until_unread

    ours, sparks = socket.socketpair()
    outfile = ours.makefile("wb")
"""


def run(program: str) -> tuple[int, str, str]:
    """Runs a program in a process that takes itself for one of the daemon's. Returns its status, output and errors."""
    text = dedent(AS_DAEMON) + dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_process_that_spark_leaves_in_the_middle_ends_without_a_word() -> None:
    status, out, errors = run("""
        for number in until_unread(iter(range(100))):
            if number == 3:
                sparks.close()
            outfile.write(bytes(100_000))
            outfile.flush() if number > 2 else sparks.recv(1 << 20) and outfile.flush()
        print("went on")
    """)
    assert (status, out, errors) == (-signal.SIGPIPE, "", "")


def test_a_process_that_spark_leaves_at_the_end_of_a_task_ends_without_a_word() -> None:
    status, out, errors = run("""
        print(list(until_unread(iter(range(3)))), flush=True)
        sparks.close()
        outfile.write(b"the task has ended")
        outfile.flush()
        print("went on")
    """)
    assert (status, out, errors) == (-signal.SIGPIPE, "[0, 1, 2]\n", "")


def test_a_process_without_a_next_task_ends_and_with_one_it_ignores_broken_pipes_again() -> None:
    next_task = """
        import pyspark.worker

        done = []
        pyspark.worker.main = lambda infile, outfile: done.append(infile.read(4))
        run = pyspark.worker.main
        list(until_unread(iter(range(3))))
        {sparks}
        pyspark.worker.main(ours.makefile("rb"), outfile)
        assert pyspark.worker.main is run
        sparks.close()
        try:
            outfile.write(b"x")
            outfile.flush()
        except BrokenPipeError:
            print(done, flush=True)
            os._exit(7)
    """
    assert run(next_task.format(sparks="sparks.close()")) == (0, "", "")
    assert run(next_task.format(sparks="sparks.send(b'task')")) == (7, "[b'task']\n", "")


def test_the_threads_of_a_task_go_on_ignoring_broken_pipes() -> None:
    status, out, errors = run("""
        def batches():
            def write():
                one, other = socket.socketpair()
                other.close()
                try:
                    one.send(b"x")
                except BrokenPipeError:
                    print("an exception", flush=True)

            thread = threading.Thread(target=write)
            thread.start()
            thread.join()
            yield 1

        print(list(until_unread(batches())))
    """)
    assert (status, out, errors) == (0, "an exception\n[1]\n", "")


def test_the_modules_of_a_process_are_not_collected_again() -> None:
    status, out, errors = run("""
        list(until_unread(iter(range(3))))
        print(gc.get_freeze_count() > 1000)
    """)
    assert (status, out, errors) == (0, "True\n", "")


def test_in_other_processes_nothing_changes() -> None:
    before = signal.getsignal(signal.SIGPIPE)
    assert list(until_unread(iter([1, 2]))) == [1, 2]  # type: ignore[arg-type, comparison-overlap]
    end_without_next_task()
    assert signal.getsignal(signal.SIGPIPE) is before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())

"""The wall clock of one process, which can be set while it runs: a small C library that is loaded before all others.

The library adds an offset to what `clock_gettime(CLOCK_REALTIME)`, `gettimeofday` and `time` return. The offset is in a
file that it maps, so a change is seen at once. Monotonic clocks and CLOCK_BOOTTIME are left alone, as they are when a
machine's clock is set. Needs a C compiler.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *offset_ns;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("PENSTOCK_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (file >= 0) {
        void *map = mmap(0, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
        if (map != MAP_FAILED)
            offset_ns = map;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed;
    if (!real_gettime)
        real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    failed = real_gettime(clock, now);
    if (!failed && offset_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long ns = now->tv_sec * 1000000000LL + now->tv_nsec + *offset_ns;
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}
"""


def build_library(folder: Path) -> Path | None:
    """Compiles the library into a folder; None if there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source, library = folder / "clock.c", folder / "clock.so"
    if not library.exists():
        source.write_text(_SOURCE, encoding="utf-8")
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


class Clock:
    """The clock of the processes that run `within` it."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("=q", 0))
        self.within = ("env", f"LD_PRELOAD={library}", f"PENSTOCK_TEST_CLOCK={file}")

    def step(self, seconds: float) -> None:
        """The clock shows so much more than the real time, or less."""
        with self._file.open("r+b") as file:  # in place: it is mapped
            file.write(struct.pack("=q", round(seconds * 1e9)))

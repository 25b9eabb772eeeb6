/* The wall clock of a node, set off by what a file of doubles says for it; other clocks are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static double offset(void)
{
    static volatile double *table;
    const char *node = getenv("ALLRANKS_NODE");
    if (!table) {
        const char *path = getenv("CHAOS_CLOCKS");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *map = file < 0 ? MAP_FAILED : mmap(0, 4096, PROT_READ, MAP_SHARED, file, 0);
        if (map == MAP_FAILED)
            return 0;
        table = map;
    }
    if (!node)
        node = getenv("CHAOS_NODE");
    return node ? table[atoi(node)] : 0;
}

int clock_gettime(clockid_t clock, struct timespec *found)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, found);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += (time_t)offset();
    return failed;
}

int gettimeofday(struct timeval *found, void *zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}

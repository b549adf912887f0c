/*
 * Makes the clocks of a process stand still for a while, like a suspend or a pause of the virtual machine, or sets its
 * wall clock.
 *
 * cc -shared -fPIC -o clock.so clock.c; LD_PRELOAD=./clock.so STOPPED_CLOCK=FILE program
 *
 * FILE holds three signed 64-bit numbers: the delays of CLOCK_MONOTONIC, CLOCK_BOOTTIME and CLOCK_REALTIME in
 * nanoseconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none[3];
static volatile int64_t *behind = none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("STOPPED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *map = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        behind = map;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    int64_t by = 0;
    if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_MONOTONIC_COARSE)
        by = behind[0];
    else if (clock == CLOCK_BOOTTIME)
        by = behind[1];
    else if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        by = behind[2];
    if (!failed && by) {
        int64_t now = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec - by;
        time->tv_sec = now / 1000000000;
        time->tv_nsec = now % 1000000000;
    }
    return failed;
}

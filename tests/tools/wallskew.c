/* Preloaded into one process, skews that process's wall clock and nothing else.
 *
 * CLOCK_REALTIME, CLOCK_REALTIME_COARSE, gettimeofday and time answer
 *
 *     real + offset + (real - base) * ppm / 1,000,000
 *
 * while CLOCK_MONOTONIC and its kin, and the timers of poll and epoll, run on as they are. The three numbers are read
 * from a file mapped into memory, so that they can be changed while the process runs. The file is named by
 * WALLSKEW_FILE and holds `struct control`, in the machine's byte order; without it nothing is skewed.
 *
 * The writer makes `sequence` odd before a change and even after it; a reader that meets an odd or a changed sequence
 * reads again, so that a clock never shows half a change.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS 1000000000LL

struct control {
    _Atomic int64_t sequence;
    _Atomic int64_t offset_ns; /* added to the real time */
    _Atomic int64_t ppm;       /* how much faster the clock runs, in millionths */
    _Atomic int64_t base_ns;   /* real time from which the rate counts */
};

static struct control *control;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("WALLSKEW_FILE");
    if (path == NULL) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) control = mapped;
}

static int64_t skewed(int64_t real) {
    if (control == NULL) return real;
    for (;;) {
        int64_t before = atomic_load(&control->sequence);
        int64_t offset = atomic_load(&control->offset_ns);
        int64_t ppm = atomic_load(&control->ppm);
        int64_t base = atomic_load(&control->base_ns);
        if (before % 2 == 0 && before == atomic_load(&control->sequence))
            return real + offset + (int64_t)((__int128)(real - base) * ppm / 1000000);
    }
}

/* The system call itself: the library's clock_gettime is the function below. */
static int64_t skewed_now(void) {
    struct timespec real;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    return skewed(real.tv_sec * NANOSECONDS + real.tv_nsec);
}

int clock_gettime(clockid_t clock, struct timespec *result) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, clock, result);
    int64_t now = skewed_now();
    result->tv_sec = now / NANOSECONDS;
    result->tv_nsec = now % NANOSECONDS;
    return 0;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
    (void)zone;
    int64_t now = skewed_now();
    result->tv_sec = now / NANOSECONDS;
    result->tv_usec = now % NANOSECONDS / 1000;
    return 0;
}

time_t time(time_t *result) {
    time_t seconds = skewed_now() / NANOSECONDS;
    if (result != NULL) *result = seconds;
    return seconds;
}

/* The heartbeat of a rank: exec/checkpoint/heartbeat.h. Its thread asks nothing of MPI or the
 * device, so it beats whatever the rank waits for. */
#include "exec/checkpoint/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "exec/checkpoint/folder_lock.h"
#include "exec/transport/own_core.h"
#include "graph/base/clock.h"

enum { NAME_BYTES = 32 };

struct smp__heartbeat {
    smp__beat *page;
    pthread_t thread;
    atomic_bool ends;
};

static void *beat(void *of)
{
    smp__heartbeat *h = of;
    const struct timespec pause = {.tv_nsec = SMP__BEAT_EVERY_MS * 1000000L};
    while (!atomic_load(&h->ends)) {
        atomic_store(&h->page->monotonic_s, smp_clock_s());
        atomic_fetch_add(&h->page->beat, 1);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* An errno, or 0. */
static int map_page(int directory, const char *name, smp__beat **page)
{
    unlinkat(directory, name, 0);
    const int file =
        openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return errno;
    int error = posix_fallocate(file, 0, SMP__BEAT_BYTES); /* a page that is there */
    void *at = MAP_FAILED;
    if (error == 0) {
        at = mmap(NULL, SMP__BEAT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        error = at == MAP_FAILED ? errno : 0;
    }
    close(file);
    *page = at == MAP_FAILED ? NULL : at;
    return error;
}

smp_status smp__heartbeat_start(int directory, int world_rank, int world_size, smp__heartbeat **out)
{
    char name[NAME_BYTES];
    bool over;
    smp__heartbeat *h = calloc(1, sizeof *h);
    if (!h)
        return smp_fail_memory(sizeof *h);
    snprintf(name, sizeof name, SMP__BEAT_NAME "%d", world_rank);
    const int error = map_page(directory, name, &h->page);
    if (error != 0) {
        free(h);
        return smp_fail(SMP_ERR_FAILED, "%s: no file for the rank's heartbeat: %s", name,
                        strerror(error));
    }
    h->page->pid = getpid();
    h->page->start_ticks = (int64_t)smp__process_start(h->page->pid, &over);
    h->page->world_rank = world_rank;
    h->page->world_size = world_size;
    atomic_init(&h->ends, false);
    atomic_thread_fence(memory_order_release);
    memcpy(h->page->magic, SMP__BEAT_MAGIC, sizeof h->page->magic);
    if (smp__own_core_start(&h->thread, beat, h)) {
        *out = h;
        return SMP_OK;
    }
    munmap(h->page, SMP__BEAT_BYTES);
    free(h);
    return smp_fail(SMP_ERR_FAILED, "no thread can be started for the rank's heartbeat");
}

void smp__heartbeat_step(smp__heartbeat *h, int64_t step, double step_s)
{
    if (!h)
        return;
    atomic_store(&h->page->step_s, step_s);
    atomic_store(&h->page->step, step);
}

void smp__heartbeat_stop(smp__heartbeat *h)
{
    if (!h)
        return;
    atomic_store(&h->ends, true);
    pthread_join(h->thread, NULL); /* within a beat */
    munmap(h->page, SMP__BEAT_BYTES);
    free(h);
}

bool smp__beat_read(int directory, const char *name, smp__beat *out)
{
    const int file = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    const bool whole = file >= 0 && pread(file, out, sizeof *out, 0) == (ssize_t)sizeof *out;
    if (file >= 0)
        close(file);
    return whole && memcmp(out->magic, SMP__BEAT_MAGIC, sizeof out->magic) == 0;
}

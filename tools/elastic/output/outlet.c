/* Where a supervisor prints; see the header. */
#include "tools/elastic/output/outlet.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "graph/base/text.h"

typedef struct outlet {
    smp_text text;
    size_t done; /* bytes of it are written */
    bool full, broken;
} outlet;

static outlet outlets[] = {[STDOUT_FILENO] = {.done = 0}, [STDERR_FILENO] = {.done = 0}};

static void say_error(int to, int error, const char *what)
{
    char line[256];
    const int n =
        snprintf(line, sizeof line, "smp-run: standard output: %s; %s\n", strerror(error), what);
    if (to == STDOUT_FILENO && n < (int)sizeof line)
        smp__outlet_put(STDERR_FILENO, line, (size_t)n);
}

/* A pipe that can be written to takes so much without waiting, and at once or not at all. */
static bool write_piece(int to, outlet *o)
{
    struct pollfd room = {.fd = to, .events = POLLOUT};
    const size_t left = o->text.length - o->done;
    if (poll(&room, 1, 0) <= 0)
        return false;
    const ssize_t n = write(to, o->text.data + o->done, left < PIPE_BUF ? left : PIPE_BUF);
    const int error = n < 0 ? errno : 0;
    o->done += n > 0 ? (size_t)n : 0;
    if (n > 0 || error == EINTR) {
        o->full = o->full && n <= 0;
        return true;
    }
    const bool full = error == ENOSPC || error == EDQUOT;
    if (full && !o->full)
        say_error(to, error, "it is tried again");
    o->full = o->full || full;
    if (full || error == EAGAIN || n == 0)
        return false;
    o->broken = true;
    say_error(to, error, "the job goes on");
    return false;
}

size_t smp__outlet_flush(int to)
{
    outlet *o = &outlets[to];
    while (o->done < o->text.length && !o->broken && write_piece(to, o))
        ;
    if (o->broken || o->done == o->text.length)
        o->done = o->text.length = 0;
    return o->text.length - o->done;
}

void smp__outlet_put(int to, const char *text, size_t bytes)
{
    outlet *o = &outlets[to];
    if (o->done > 0 && smp__outlet_flush(to) > 0) {
        memmove(o->text.data, o->text.data + o->done, o->text.length - o->done);
        o->text.length -= o->done;
        o->done = 0;
    }
    if (!o->broken)
        smp_text_append_bytes(&o->text, text, bytes);
    smp__outlet_flush(to);
}

bool smp__outlet_full(int to)
{
    return outlets[to].full;
}

bool smp__outlet_broken(int to)
{
    return outlets[to].broken;
}

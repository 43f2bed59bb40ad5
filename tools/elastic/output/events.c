/* Events of an elastic job; see the header. */
#include "tools/elastic/output/events.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "graph/base/clock.h"
#include "tools/elastic/output/outlet.h"

enum { TEXT_BYTES = 4096 };

smp_status smp__events_open(const char *path, smp__events *out)
{
    *out = (smp__events){.file = -1, .begin_s = smp_clock_s()};
    if (!path)
        return SMP_OK;
    out->file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    return out->file >= 0 ? SMP_OK
                          : smp_fail(SMP_ERR_INPUT, "--events: %s: %s", path, strerror(errno));
}

void smp__events_close(smp__events *events)
{
    if (events->file >= 0)
        close(events->file);
    events->file = -1;
}

void smp__events_say(const char *format, ...)
{
    char text[TEXT_BYTES];
    smp_text line = {0};
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    smp_text_append(&line, "smp-run: %s\n", text);
    smp__outlet_put(STDERR_FILENO, line.data, line.failed ? 0 : line.length);
    smp_text_free(&line);
}

/* A text of any length, such as the names of all slots; malloc'ed. NULL: no memory. */
static char *print(const char *format, va_list values)
{
    va_list again;
    va_copy(again, values);
    const int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = length < 0 ? NULL : malloc((size_t)length + 1);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, values);
    return text;
}

void smp__events_put(smp__events *events, const char *name, const char *more, ...)
{
    struct timespec now;
    smp_text line = {0};
    va_list values;
    if (events->file < 0)
        return;
    va_start(values, more);
    char *members = print(more, values);
    va_end(values);
    clock_gettime(CLOCK_REALTIME, &now);
    smp_text_append(&line, "{\"time_s\": %lld.%03ld, \"event\": \"%s\"%s%s}\n",
                    (long long)now.tv_sec, now.tv_nsec / 1000000, name,
                    members && *members ? ", " : "", members ? members : "");
    free(members);
    const ssize_t n = line.failed ? -1 : write(events->file, line.data, line.length);
    if (n != (ssize_t)line.length) {
        smp__events_say("--events: %s; no more events are written",
                        n < 0 ? strerror(errno) : "the disk is full");
        smp__events_close(events);
    }
    smp_text_free(&line);
}

void smp__events_steps(smp__events *events, int64_t step)
{
    const double now_s = smp_clock_s();
    const double apart_s = fmax(1.0, 0.01 * (now_s - events->begin_s));
    if (events->told_s > 0.0 && now_s < events->told_s + apart_s)
        return;
    events->told_s = now_s;
    smp__events_put(events, "steps", "\"step\": %" PRId64, step);
}

void smp__events_sum(smp__events *e, int code)
{
    const double total_s = smp_clock_s() - e->begin_s;
    const double share = total_s > 0.0 ? e->useful_s / total_s : 0.0;
    const double *s = e->phase_s;
    smp__events_put(e, "end",
                    "\"exit_code\": %d, \"failures\": %d, \"changes\": %d, \"steps_lost\": %" PRId64
                    ", \"detect_s\": %.3f, \"plan_s\": %.3f, \"start_s\": %.3f, \"load_s\": %.3f, "
                    "\"total_s\": %.3f, \"useful_s\": %.3f",
                    code, e->failures, e->changes, e->steps_lost, s[SMP__DETECT], s[SMP__PLAN],
                    s[SMP__START], s[SMP__LOAD], total_s, e->useful_s);
    if (e->failures + e->changes > 0)
        smp__events_say("%d failure%s, %d change%s of devices, %" PRId64
                        " step%s lost; detected in %.1f s, planned in %.1f s, started in %.1f s, "
                        "loaded in %.1f s; %.1f %% of %.1f s in steps that count",
                        e->failures, e->failures == 1 ? "" : "s", e->changes,
                        e->changes == 1 ? "" : "s", e->steps_lost, e->steps_lost == 1 ? "" : "s",
                        s[SMP__DETECT], s[SMP__PLAN], s[SMP__START], s[SMP__LOAD], 100.0 * share,
                        total_s);
}

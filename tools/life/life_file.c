/* A file of events, line by line; see job_life.h. A line is JSON, which is YAML, so that the reader
 * of YAML, with its bounds, reads it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/life/job_life.h"

enum { MOST_BYTES = 1 << 28, LINE_BYTES = 1 << 16 };

/* A line that is no event does not hide the others. */
static smp_status take_line(smp__life *life, smp__life_state *state, const char *path, int64_t n,
                            const char *line, size_t bytes)
{
    char where[256];
    smp_status status;
    snprintf(where, sizeof where, "%.200s, line %lld", path, (long long)n);
    status = bytes <= LINE_BYTES
                 ? smp__life_take(state, where, line, bytes)
                 : smp_fail(SMP_ERR_INPUT, "%s: got %zu bytes, expected an event, at most %d",
                            where, bytes, LINE_BYTES);
    if (status != SMP_ERR_INPUT)
        return status;
    if (life->skipped++ == 0)
        snprintf(life->first_skipped, sizeof life->first_skipped, "%s", smp_last_error());
    return SMP_OK;
}

static smp_status take_lines(smp__life *life, smp__life_state *state, const char *path,
                             const char *data, size_t bytes)
{
    const char *at = data, *end = data + bytes;
    for (int64_t n = 1; at < end; n++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        if (stop > at)
            SMP_TRY(take_line(life, state, path, n, at, (size_t)(stop - at)));
        at = stop + 1;
    }
    return SMP_OK;
}

smp_status smp__life_read(const char *path, smp__life *out)
{
    smp__life_state *state = NULL;
    char *data = NULL;
    size_t bytes = 0;
    smp_status status = smp__life_open(out, &state);
    if (status == SMP_OK)
        status = smp_file_read(path, MOST_BYTES, &data, &bytes);
    if (status == SMP_OK)
        status = take_lines(out, state, path, data, bytes);
    const smp_status closed = smp__life_close(state);
    free(data);
    SMP_TRY(status);
    SMP_TRY(closed);
    if (out->supervisors > 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT, "%s: expected events of smp-run --elastic --events%s%s", path,
                    out->skipped > 0 ? ": " : "", out->first_skipped);
}

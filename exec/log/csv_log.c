/* A log as comma-separated values: a head, then a line for each step; what is not known is an empty
 * cell. Numbers have the digits of --json, infinities and NaN are "inf" and "nan", which pandas and
 * Python's float() read. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/log/step_log.h"

static smp_status locate(const char *name, char **path)
{
    *path = strdup(name);
    return *path ? SMP_OK : smp_fail_memory(strlen(name));
}

static void begin(smp_text *out)
{
    smp_text_append(out, "step");
    for (int i = 0; i < SMP__LOG_N_COLUMNS; i++)
        smp_text_append(out, ",%s", smp__log_columns[i].name);
    smp_text_append(out, "\n");
}

static void put_number(smp_text *out, double value, bool whole)
{
    smp_text_append(out, whole ? "%.0f" : "%.9g", isnan(value) ? (double)NAN : value);
}

static void put_row(const smp__log_row *row, smp_text *out)
{
    smp_text_append(out, "%" PRId64, row->step);
    for (int i = 0; i < SMP__LOG_N_COLUMNS; i++) {
        smp_text_append(out, ",");
        if (row->known[i])
            put_number(out, row->value[i], smp__log_columns[i].whole);
    }
    smp_text_append(out, "\n");
}

/* The step of a line; false: none that a log of ours has. */
static bool read_step(const char *line, const char *end, int64_t *step)
{
    char number[24];
    const char *comma = memchr(line, ',', (size_t)(end - line));
    if (!comma || comma - line >= (int)sizeof(number))
        return false;
    memcpy(number, line, (size_t)(comma - line));
    number[comma - line] = '\0';
    return smp_parse_int(number, step) && *step > 0;
}

static smp_status keep_lines(const char *path, const char *old, size_t bytes, int64_t last,
                             smp_text *kept)
{
    const char *end = old + bytes, *next;
    int64_t step = 0, before = 0;
    int number = 2;
    for (const char *line = old; line < end; line = next, number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop)
            return SMP_OK; /* not written to its end */
        next = stop + 1;
        if (!read_step(line, stop, &step) || step <= before)
            return smp_fail(SMP_ERR_INPUT,
                            "%s:%d:1: expected a row that begins with a step after %" PRId64, path,
                            number, before);
        if (step > last)
            return SMP_OK;
        smp_text_append_bytes(kept, line, (size_t)(next - line));
        before = step;
    }
    return SMP_OK;
}

static smp_status keep_rows(const char *path, const char *old, size_t bytes, int64_t step,
                            smp_text *kept)
{
    begin(kept);
    if (bytes == 0 || kept->failed)
        return SMP_OK;
    if (bytes < kept->length || memcmp(old, kept->data, kept->length) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s:1:1: not a log to go on with: expected the head '%.*s'",
                        path, (int)kept->length - 1, kept->data);
    return keep_lines(path, old + kept->length, bytes - kept->length, step, kept);
}

const smp__log_kind smp__log_csv = {
    .locate = locate, .keep = keep_rows, .begin = begin, .row = put_row};

/* The file of a log: exec/log/step_log.h. Linear in what an old one holds, then in rows. */
#include "exec/log/step_log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const smp__log_column_form smp__log_columns[SMP__LOG_N_COLUMNS] = {
#define SMP__LOG_FORM(id, name, tag, whole) {name, tag, whole},
    SMP__LOG_COLUMNS(SMP__LOG_FORM)
#undef SMP__LOG_FORM
};

enum { ROW_BYTES = 4096, MOST_OLD_BYTES = 1 << 30 };

struct smp__step_log {
    const smp__log_kind *kind;
    char *path;
    FILE *file;
    smp_text row; /* grown once: steps allocate nothing */
};

static const smp__log_kind *kind_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".csv") == 0 ? &smp__log_csv : &smp__log_events;
}

/* Replaces what is there by what stays of it, at once: a job that dies here loses nothing. */
static smp_status keep_rows(const smp__step_log *log, int64_t step)
{
    char *old = NULL;
    size_t bytes = 0;
    smp_text kept = {0};
    SMP_TRY(smp_file_read(log->path, MOST_OLD_BYTES, &old, &bytes));
    smp_status status = log->kind->keep(log->path, old, bytes, step, &kept);
    if (status == SMP_OK && kept.failed)
        status = smp_fail_memory(bytes);
    if (status == SMP_OK && smp_file_write(log->path, kept.data, kept.length) != SMP_OK)
        status = smp_fail(SMP_ERR_INPUT, "%s", smp_last_error()); /* nothing was trained yet */
    smp_text_free(&kept);
    free(old);
    return status;
}

static smp_status open_file(smp__step_log *log, int64_t resumed_step)
{
    const bool old = resumed_step >= 0 && access(log->path, F_OK) == 0;
    if (old)
        SMP_TRY(keep_rows(log, resumed_step));
    log->file = fopen(log->path, old ? "ab" : "wb");
    if (!log->file)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot write the log: %s", log->path, strerror(errno));
    log->row.data = malloc(ROW_BYTES);
    if (!log->row.data)
        return smp_fail_memory(ROW_BYTES);
    log->row.capacity = ROW_BYTES;
    if (!old)
        log->kind->begin(&log->row);
    return SMP_OK;
}

static smp_status flush(smp__step_log *log)
{
    if (log->row.failed)
        return smp_fail_memory(log->row.capacity);
    const bool done = fwrite(log->row.data, 1, log->row.length, log->file) == log->row.length &&
                      fflush(log->file) == 0;
    log->row.length = 0;
    return done ? SMP_OK
                : smp_fail(SMP_ERR_FAILED, "%s: cannot write the log: %s", log->path,
                           strerror(errno));
}

/* A folder that has a file is of a run before. */
static smp_status check_new(const smp__step_log *log, const char *name)
{
    return log->kind == &smp__log_events && access(log->path, F_OK) == 0
               ? smp_fail(SMP_ERR_INPUT,
                          "%s: holds the log of another run: go on with --resume, or choose "
                          "another folder",
                          name)
               : SMP_OK;
}

smp_status smp__step_log_check_new(const char *name)
{
    smp__step_log log = {.kind = kind_of(name)};
    smp_status status = log.kind->locate(name, &log.path);
    if (status == SMP_OK)
        status = check_new(&log, name);
    free(log.path);
    return status;
}

smp_status smp__step_log_open(const char *name, int64_t resumed_step, smp__step_log **out)
{
    smp__step_log *log = calloc(1, sizeof(*log));
    if (!log)
        return smp_fail_memory(sizeof(*log));
    log->kind = kind_of(name);
    smp_status status = log->kind->locate(name, &log->path);
    if (status == SMP_OK && resumed_step < 0)
        status = check_new(log, name);
    if (status == SMP_OK)
        status = open_file(log, resumed_step);
    if (status == SMP_OK)
        status = flush(log);
    if (status != SMP_OK)
        smp__step_log_close(log);
    else
        *out = log;
    return status;
}

smp_status smp__step_log_add(smp__step_log *log, const smp__log_row *row)
{
    log->kind->row(row, &log->row);
    return flush(log);
}

void smp__step_log_close(smp__step_log *log)
{
    if (!log)
        return;
    if (log->file)
        fclose(log->file);
    smp_text_free(&log->row);
    free(log->path);
    free(log);
}

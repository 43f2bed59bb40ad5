/* Rows of steps, once each; see the header. */
#define _GNU_SOURCE /* fallocate */
#include "tools/elastic/rows_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/run/supervised.h"

enum {
    HEAD_BYTES = 64,
    BLOCK = 64 * 1024,
    LINE_BYTES = 1 << 20, /* more is passed on in parts */
    KEPT_BYTES = 1 << 20, /* of what was printed stay, for a supervisor that is started again */
    FREED_AT_ONCE = 4 * KEPT_BYTES
};

static smp_status fail_file(const char *path, const char *what)
{
    return smp_fail(SMP_ERR_FAILED, "%s: %s: %s", path, what, strerror(errno));
}

smp_status smp__rows_open(const char *path, smp__rows *out)
{
    struct stat info;
    *out = (smp__rows){.file = -1};
    out->path = strdup(path);
    out->seen = calloc(SMP__ROWS_SEEN, sizeof *out->seen);
    if (!out->path || !out->seen)
        return smp_fail_memory(SMP__ROWS_SEEN * sizeof *out->seen);
    out->file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (out->file < 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: cannot be opened: %s; --keep-in KEEP names another place", path,
                        strerror(errno));
    if (fstat(out->file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 1 ||
        info.st_uid != geteuid() || (info.st_mode & 077) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: expected a file of this user alone", path);
    if (flock(out->file, LOCK_EX | LOCK_NB) != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: another smp-run --elastic works on this checkpoint folder", path);
    out->fresh = info.st_size == 0;
    return SMP_OK;
}

static smp_status write_head(const smp__rows *rows)
{
    char head[HEAD_BYTES + 1];
    snprintf(head, sizeof head, "SMP rows 1 %-16.16s %020" PRId64 "%*s\n", rows->job,
             rows->printed_to, HEAD_BYTES - 49, "");
    return pwrite(rows->file, head, HEAD_BYTES, 0) == HEAD_BYTES
               ? SMP_OK
               : fail_file(rows->path, "cannot be written");
}

/* To standard output, all of it. A reader that has left does not end the job. */
static void print(smp__rows *rows, const char *text, size_t bytes)
{
    while (bytes > 0 && !rows->unprinted) {
        const ssize_t n = write(STDOUT_FILENO, text, bytes);
        if (n >= 0) {
            text += n;
            bytes -= (size_t)n;
        } else if (errno == EAGAIN) {
            struct pollfd wait = {.fd = STDOUT_FILENO, .events = POLLOUT};
            (void)poll(&wait, 1, -1);
        } else if (errno != EINTR) {
            fprintf(stderr, "smp-run: standard output: %s; the job goes on\n", strerror(errno));
            rows->unprinted = true;
        }
    }
}

static smp_status take_mark(smp__rows *rows, int64_t step, uint64_t bits)
{
    smp__step_bits *seen = &rows->seen[step % SMP__ROWS_SEEN];
    if (!rows->silent) {
        rows->first = rows->first > 0 ? rows->first : step;
        rows->at = step;
        rows->n_again += step <= rows->last;
    }
    if (step <= rows->last && seen->step == step && seen->bits != bits) {
        double before, now;
        memcpy(&before, &seen->bits, sizeof before);
        memcpy(&now, &bits, sizeof now);
        return smp_fail(SMP_ERR_FAILED,
                        "step %" PRId64
                        " has the loss %.17g, and had %.17g before a rank was lost: "
                        "expected the same bits",
                        step, now, before);
    }
    *seen = (smp__step_bits){step, bits};
    rows->last = step > rows->last ? step : rows->last;
    return SMP_OK;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The highest step of such lines that has been printed; NULL: the line is none of a step. */
static int64_t *printed_of(smp__rows *rows, const char *line, int64_t *step)
{
    static const struct {
        const char *before, *row, *evaluation;
    } form[] = {{"step ", "  loss ", "  evaluation "},
                {"{\"step\": ", ", \"loss\": ", ", \"eval_loss\": "}};
    for (size_t i = 0; i < sizeof form / sizeof form[0]; i++) {
        char *end;
        if (!begins(line, form[i].before))
            continue;
        *step = strtoll(line + strlen(form[i].before), &end, 10);
        return begins(end, form[i].row)          ? &rows->row
               : begins(end, form[i].evaluation) ? &rows->evaluation
                                                 : NULL;
    }
    return NULL;
}

/* line: with its newline, and a zero in its place or after it. */
static smp_status take_line(smp__rows *rows, const char *line, size_t bytes, smp_text *out)
{
    int64_t step = 0;
    uint64_t bits = 0;
    if (sscanf(line, SMP__STEP_MARK_READ, &step, &bits) == 2)
        return step > 0 ? take_mark(rows, step, bits) : SMP_OK;
    int64_t *printed = printed_of(rows, line, &step);
    const bool again = printed && step <= *printed;
    if (printed && !again)
        *printed = step;
    if (!again && !rows->silent)
        smp_text_append_bytes(out, line, bytes);
    return SMP_OK;
}

/* Whole lines of what has come; the rest waits. */
static smp_status take_lines(smp__rows *rows, const char *data, size_t bytes, smp_text *out)
{
    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        const size_t n = end ? (size_t)(end - data) + 1 : bytes;
        smp_text_append_bytes(&rows->part, data, n);
        data += n;
        bytes -= n;
        if (rows->part.failed)
            return smp_fail_memory(rows->part.capacity);
        if (!end && rows->part.length < LINE_BYTES)
            break;
        SMP_TRY(take_line(rows, rows->part.data, rows->part.length, out));
        rows->part.length = 0;
    }
    return SMP_OK;
}

/* From read_to up to `end`, or all that is there. */
static smp_status read_up_to(smp__rows *rows, int64_t end, smp_text *out)
{
    char block[BLOCK];
    smp_status status = SMP_OK;
    while (status == SMP_OK && rows->read_to < end) {
        const int64_t left = end - rows->read_to;
        const ssize_t n =
            pread(rows->file, block, left < BLOCK ? (size_t)left : BLOCK, rows->read_to);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? fail_file(rows->path, "cannot be read") : SMP_OK;
        rows->read_to += n;
        status = take_lines(rows, block, (size_t)n, out);
    }
    return status;
}

/* The job of the head, and what it has printed; false: there is none. */
static bool read_head(const smp__rows *rows, char job[17], int64_t *printed_to)
{
    char head[HEAD_BYTES + 1] = "";
    return pread(rows->file, head, HEAD_BYTES, 0) == HEAD_BYTES &&
           sscanf(head, "SMP rows 1 %16s %" SCNd64, job, printed_to) == 2 &&
           *printed_to >= HEAD_BYTES;
}

smp_status smp__rows_take(smp__rows *rows, const char *job, int64_t printed)
{
    char known[17] = "";
    int64_t printed_to = 0;
    smp_text none = {0};
    snprintf(rows->job, sizeof rows->job, "%s", job);
    rows->read_to = rows->printed_to = rows->freed_to = HEAD_BYTES;
    if (!read_head(rows, known, &printed_to) || strcmp(known, job) != 0) {
        if (ftruncate(rows->file, 0) != 0)
            return fail_file(rows->path, "cannot be emptied");
        rows->last = rows->row = rows->evaluation = printed;
        return write_head(rows);
    }
    const off_t hole = lseek(rows->file, HEAD_BYTES, SEEK_HOLE); /* what was freed */
    const off_t data = hole < 0 ? -1 : lseek(rows->file, hole, SEEK_DATA);
    rows->read_to = data > HEAD_BYTES ? data : HEAD_BYTES;
    rows->silent = true;
    const smp_status status = read_up_to(rows, printed_to, &none);
    rows->silent = false;
    rows->part.length = 0;
    rows->printed_to = printed_to;
    smp_text_free(&none);
    return status;
}

void smp__rows_begin(smp__rows *rows)
{
    rows->first = rows->at = rows->n_again = 0;
}

/* Memory of what was printed long ago, but for the head's page. */
static void free_printed(smp__rows *rows)
{
    const int64_t page = 4096, end = (rows->printed_to - KEPT_BYTES) / page * page;
    if (rows->printed_to - rows->freed_to < FREED_AT_ONCE)
        return;
    (void)fallocate(rows->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page, end - page);
    rows->freed_to = end;
}

smp_status smp__rows_read(smp__rows *rows)
{
    smp_text out = {0};
    const int64_t before = rows->read_to;
    smp_status status = read_up_to(rows, INT64_MAX, &out);
    print(rows, out.data, out.length);
    if (status == SMP_OK && out.failed)
        status = smp_fail_memory(out.capacity);
    smp_text_free(&out);
    if (rows->read_to == before)
        return status;
    rows->printed_to = rows->read_to - (int64_t)rows->part.length;
    free_printed(rows);
    return status == SMP_OK ? write_head(rows) : status;
}

void smp__rows_close(smp__rows *rows, bool remove)
{
    if (rows->file >= 0 && remove)
        unlink(rows->path);
    if (rows->file >= 0)
        close(rows->file);
    smp_text_free(&rows->part);
    free(rows->seen);
    free(rows->path);
    *rows = (smp__rows){.file = -1};
}

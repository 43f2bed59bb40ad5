/* Rows of steps, once each; see the header. */
#define _GNU_SOURCE /* fallocate */
#include "tools/elastic/output/rows_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/elastic/output/events.h"
#include "tools/elastic/output/outlet.h"
#include "exec/elastic/supervised.h"

enum {
    HEAD_BYTES = 64,
    BLOCK = 64 * 1024,
    AHEAD_BYTES = 1 << 20,
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

/* A rank that finds no room for its lines goes on without them. */
static void look_for_gap(smp__rows *rows, int64_t step)
{
    if (rows->at == 0 || step <= rows->at + 1)
        return;
    smp__events_say("rows of steps %" PRId64 " to %" PRId64 " are lost: no room for %s",
                    rows->at + 1, step - 1, rows->path);
    rows->lost = true;
}

static smp_status take_mark(smp__rows *rows, int64_t step, uint64_t bits)
{
    smp__step_bits *seen = &rows->seen[step % SMP__ROWS_SEEN];
    if (!rows->silent) {
        look_for_gap(rows, step);
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

/* Whole lines from `at` on: *used bytes of the block, which has a byte more; 0: no line has ended.
 * What is longer than the block counts as a line. */
static smp_status read_lines(const smp__rows *rows, int64_t at, char *block, size_t size,
                             size_t *used)
{
    ssize_t n;
    do
        n = pread(rows->file, block, size, at);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return fail_file(rows->path, "cannot be read");
    const char *end = memrchr(block, '\n', (size_t)n);
    *used = end ? (size_t)(end - block) + 1 : (size_t)n == size ? size : 0;
    return SMP_OK;
}

/* The length of the line at the beginning, whose newline is replaced by a zero. */
static size_t cut_line(char *text, size_t bytes)
{
    char *end = memchr(text, '\n', bytes);
    end = end ? end : text + bytes;
    *end = '\0';
    return (size_t)(end - text) + 1;
}

/* What ranks leave for the supervisor: a step, a rank's pace, a state that is loaded. */
typedef struct mark {
    enum { NO_MARK, STEP, PACE, LOAD } kind;
    int64_t step;
    uint64_t bits;
    int number;  /* a rank, or whether it is from memory */
    double much; /* how many times slower, or bytes of others */
} mark;

/* The whole line: a program may print others that begin like a mark. */
static mark read_mark(const char *line)
{
    mark m = {0};
    int digits = 0, end = 0;
    if (sscanf(line, SMP__STEP_MARK_READ, &m.step, &digits, &m.bits, &end) == 2)
        m.kind = m.step > 0 && end == digits + SMP__STEP_MARK_DIGITS ? STEP : NO_MARK;
    else if (sscanf(line, SMP__PACE_MARK_READ, &m.number, &m.much, &end) == 2)
        m.kind = m.number >= 0 && m.much > 0.0 ? PACE : NO_MARK;
    else if (sscanf(line, SMP__LOAD_MARK_READ, &m.number, &m.much, &end) == 2)
        m.kind = m.much >= 0.0 ? LOAD : NO_MARK;
    if (line[end] != '\0')
        m.kind = NO_MARK;
    return m;
}

/* Looks at the marks of all lines that have come. */
static smp_status take_marks(smp__rows *rows)
{
    char block[BLOCK + 1];
    for (;;) {
        size_t used = 0;
        SMP_TRY(read_lines(rows, rows->read_to, block, BLOCK, &used));
        if (used == 0)
            return SMP_OK;
        for (size_t at = 0, n; at < used; at += n) {
            n = cut_line(block + at, used - at);
            const mark m = read_mark(block + at);
            if (m.kind == STEP)
                SMP_TRY(take_mark(rows, m.step, m.bits));
            if (m.kind == PACE && rows->tell_pace && !rows->silent)
                rows->tell_pace(rows->context, m.number, m.much);
            if (m.kind == LOAD) {
                rows->loaded = true;
                rows->from_memory = m.number != 0;
                rows->fetched = m.much;
            }
        }
        rows->read_to += (int64_t)used;
    }
}

/* Takes out marks, and rows that have been printed. The length of what stays. */
static size_t sift(smp__rows *rows, char *text, size_t bytes)
{
    size_t kept = 0;
    for (size_t at = 0, n; at < bytes; at += n) {
        int64_t step = 0;
        const char last = text[bytes - 1];
        n = cut_line(text + at, bytes - at);
        const bool is_mark = read_mark(text + at).kind != NO_MARK;
        int64_t *printed = is_mark ? NULL : printed_of(rows, text + at, &step);
        if (is_mark || (printed && step <= *printed))
            continue;
        if (printed)
            *printed = step;
        n = n < bytes - at ? n : bytes - at;
        text[at + n - 1] = at + n < bytes ? '\n' : last;
        memmove(text + kept, text + at, n);
        kept += n;
    }
    return kept;
}

/* The lines after those that are printed, as many as a pipe takes at once. */
static smp_status read_piece(const smp__rows *rows, char *block, size_t *used)
{
    const int64_t left = rows->read_to - rows->printed_to;
    const size_t piece = left < PIPE_BUF ? (size_t)left : PIPE_BUF;
    const size_t most = left < BLOCK ? (size_t)left : BLOCK;
    *used = 0;
    if (piece > 0)
        SMP_TRY(read_lines(rows, rows->printed_to, block, piece, used));
    return *used == piece && piece < most && block[piece - 1] != '\n'
               ? read_lines(rows, rows->printed_to, block, most, used)
               : SMP_OK;
}

/* The job of the head, and what it has printed; false: there is none. */
static bool read_head(const smp__rows *rows, char job[17], int64_t *printed_to)
{
    char head[HEAD_BYTES + 1] = "";
    return pread(rows->file, head, HEAD_BYTES, 0) == HEAD_BYTES &&
           sscanf(head, "SMP rows 1 %16s %" SCNd64, job, printed_to) == 2 &&
           *printed_to >= HEAD_BYTES;
}

/* What ranks that are gone have left. */
static smp_status take_silently(smp__rows *rows)
{
    rows->silent = true;
    const smp_status status = take_marks(rows);
    rows->silent = false;
    return status;
}

smp_status smp__rows_take(smp__rows *rows, const char *job, int64_t printed)
{
    char known[17] = "";
    int64_t printed_to = 0;
    snprintf(rows->job, sizeof rows->job, "%s", job);
    rows->read_to = rows->printing_to = rows->printed_to = rows->freed_to = HEAD_BYTES;
    if (!read_head(rows, known, &printed_to) || strcmp(known, job) != 0) {
        if (ftruncate(rows->file, 0) != 0)
            return fail_file(rows->path, "cannot be emptied");
        rows->last = rows->row = rows->evaluation = printed;
        return write_head(rows);
    }
    const off_t hole = lseek(rows->file, HEAD_BYTES, SEEK_HOLE); /* what was freed */
    const off_t data = hole < 0 ? -1 : lseek(rows->file, hole, SEEK_DATA);
    rows->read_to = rows->printed_to = data > HEAD_BYTES ? data : HEAD_BYTES;
    SMP_TRY(take_silently(rows));
    while (rows->printed_to < printed_to) { /* which rows have been printed */
        char block[BLOCK + 1];
        const int64_t left = printed_to - rows->printed_to;
        size_t used = 0;
        SMP_TRY(
            read_lines(rows, rows->printed_to, block, left < BLOCK ? (size_t)left : BLOCK, &used));
        if (used == 0)
            break;
        sift(rows, block, used);
        rows->printed_to += (int64_t)used;
    }
    rows->printed_to = rows->printing_to = printed_to;
    return SMP_OK;
}

/* Room for what comes next, so that a full memory is met by something else first. */
static void reserve(smp__rows *rows)
{
    if (rows->read_to + AHEAD_BYTES / 2 <= rows->room_to)
        return;
    (void)fallocate(rows->file, FALLOC_FL_KEEP_SIZE, rows->read_to, AHEAD_BYTES);
    rows->room_to = rows->read_to + AHEAD_BYTES;
}

smp_status smp__rows_begin(smp__rows *rows)
{
    SMP_TRY(take_silently(rows));
    rows->first = rows->at = rows->n_again = 0;
    rows->loaded = rows->from_memory = false;
    rows->fetched = 0.0;
    if (ftruncate(rows->file, rows->read_to) != 0)
        return fail_file(rows->path, "cannot be cut");
    rows->room_to = 0;
    reserve(rows);
    return SMP_OK;
}

void smp__rows_end_line(smp__rows *rows)
{
    struct stat info;
    if (fstat(rows->file, &info) == 0 && info.st_size > rows->read_to)
        (void)!pwrite(rows->file, "\n", 1, info.st_size); /* no room: it is not printed */
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

smp_status smp__rows_print(smp__rows *rows)
{
    char block[BLOCK + 1];
    while (smp__outlet_flush(STDOUT_FILENO) == 0) {
        size_t used = 0;
        if (rows->printing_to > rows->printed_to) {
            rows->printed_to = rows->printing_to;
            free_printed(rows);
            SMP_TRY(write_head(rows));
        }
        SMP_TRY(read_piece(rows, block, &used));
        if (used == 0)
            break;
        rows->printing_to = rows->printed_to + (int64_t)used;
        smp__outlet_put(STDOUT_FILENO, block, sift(rows, block, used));
    }
    return SMP_OK;
}

bool smp__rows_printed(const smp__rows *rows)
{
    return rows->printed_to == rows->read_to;
}

smp_status smp__rows_read(smp__rows *rows)
{
    const smp_status marks = take_marks(rows);
    reserve(rows);
    const smp_status printed = smp__rows_print(rows); /* up to a mark that is wrong */
    return marks != SMP_OK ? marks : printed;
}

void smp__rows_close(smp__rows *rows, bool remove)
{
    if (rows->file >= 0 && remove)
        unlink(rows->path);
    if (rows->file >= 0)
        close(rows->file);
    free(rows->seen);
    free(rows->path);
    *rows = (smp__rows){.file = -1};
}

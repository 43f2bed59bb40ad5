/* The drawing for a terminal: a line per rank, a character per slice of time, which shows what the
 * rank does for most of it. Where cells are wide enough, a cell begins with its micro-batch number.
 * O(actions + ranks * columns). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/show/picture_model.h"

enum { LEAST_COLUMNS = 60, USUAL_COLUMNS = 100, MOST_COLUMNS = 400, MOST_RANKS = 64, LABEL = 9 };

static const char marks[] = "><(=#"; /* of the classes of cells */

enum { IDLE = SMP__CELL_CLASSES }; /* the class of what no cell fills */

typedef struct strip {
    int width;
    double slice_us;
    double *busy_us; /* [classes][width] time of each kind in each slice */
} strip;

static void add_span(const strip *s, int mark, double start_us, double end_us)
{
    int first = (int)(start_us / s->slice_us), last = (int)(end_us / s->slice_us);
    for (int x = first; x <= last && x < s->width; x++) {
        double low = x * s->slice_us, high = low + s->slice_us;
        double from = start_us > low ? start_us : low, to = end_us < high ? end_us : high;
        if (to > from)
            s->busy_us[mark * s->width + x] += to - from;
    }
}

/* The kind that fills most of a slice; idle if that is more than half of it. */
static char dominant(const strip *s, int x)
{
    double busy_us = 0.0;
    int most = 0;
    for (int k = 0; k < SMP__CELL_CLASSES; k++) {
        busy_us += s->busy_us[k * s->width + x];
        if (s->busy_us[k * s->width + x] > s->busy_us[most * s->width + x])
            most = k;
    }
    return busy_us < 0.5 * s->slice_us ? '.' : marks[most];
}

/* Where slices hold several cells: marks in the proportions of the kinds. What a slice could not
 * show is owed to the next ones (debt_us: the kinds, then idle). */
static char blended(const strip *s, int x, double debt_us[IDLE + 1])
{
    double idle_us = s->slice_us;
    int most = IDLE;
    for (int k = 0; k < SMP__CELL_CLASSES; k++) {
        debt_us[k] += s->busy_us[k * s->width + x];
        idle_us -= s->busy_us[k * s->width + x];
    }
    debt_us[IDLE] += idle_us;
    for (int k = 0; k < SMP__CELL_CLASSES; k++)
        if (debt_us[k] > debt_us[most])
            most = k;
    debt_us[most] -= s->slice_us;
    return most < IDLE ? marks[most] : '.';
}

/* Numbers at the left ends of cells, if all of the number and one mark of its cell fit. */
static void number_cells(const strip *s, const smp__lane *lane, char *line)
{
    for (int64_t i = 0; i < lane->n; i++) {
        const smp__cell *c = &lane->cell[i];
        char label[16], mark = marks[smp__cell_class(c->kind)];
        int length = snprintf(label, sizeof label, "%d", (int)c->microbatch);
        int first = (int)(c->start_us / s->slice_us + 0.5), n = 0;
        while (first + n < s->width && line[first + n] == mark &&
               (first + n + 0.5) * s->slice_us < c->end_us)
            n++;
        if (c->microbatch >= 0 && n > length)
            memcpy(line + first, label, (size_t)length);
    }
}

static void put_line(const strip *s, const smp__lane *lane, bool numbers, smp_text *text)
{
    char line[MOST_COLUMNS + 1];
    double debt_us[IDLE + 1] = {0.0};
    bool dense = 2 * lane->n > 3 * s->width;
    memset(s->busy_us, 0, SMP__CELL_CLASSES * (size_t)s->width * sizeof *s->busy_us);
    for (int64_t i = 0; i < lane->n; i++)
        add_span(s, smp__cell_class(lane->cell[i].kind), lane->cell[i].start_us,
                 lane->cell[i].end_us);
    for (int x = 0; x < s->width; x++)
        line[x] = dense ? blended(s, x, debt_us) : dominant(s, x);
    line[s->width] = '\0';
    if (numbers)
        number_cells(s, lane, line);
    smp_text_append(text, "%s", line);
}

/* What goes to host memory, and what comes back, in each slice. */
static void put_host(const strip *s, const smp__lane *lane, smp_text *text)
{
    char line[MOST_COLUMNS + 1];
    memset(line, ' ', (size_t)s->width);
    line[s->width] = '\0';
    for (int64_t i = 0; i < lane->n_beside; i++) {
        const smp__beside *b = &lane->beside[i];
        const char mark = smp__beside_letters[b->kind] == 'S'   ? 'v'
                          : smp__beside_letters[b->kind] == 'L' ? '^'
                                                                : ' ';
        const int first = (int)(b->start_us / s->slice_us), last = (int)(b->end_us / s->slice_us);
        for (int x = first; mark != ' ' && x <= last && x < s->width; x++)
            line[x] = line[x] == ' ' || line[x] == mark ? mark : 'x';
    }
    smp_text_append(text, "%-*s%s\n", LABEL, "  host", line);
}

/* Do numbers fit in most cells? Else only marks are drawn: some numbers here and there mislead. */
static bool numbers_fit(const smp_picture *picture, double slice_us)
{
    int64_t fit = 0, all = 0;
    int digits = picture->plan->microbatches > 100 ? 3 : picture->plan->microbatches > 10 ? 2 : 1;
    for (int rank = 0; rank < picture->plan->pipeline; rank++) {
        const smp__lane *lane = &picture->predicted.lane[rank];
        for (int64_t i = 0; i < lane->n; i++, all++)
            fit += lane->cell[i].end_us - lane->cell[i].start_us >= (digits + 1) * slice_us;
    }
    return 2 * fit > all;
}

static void put_ranks(const smp_picture *picture, const strip *s, smp_text *text)
{
    const smp_plan *plan = picture->plan;
    bool numbers = numbers_fit(picture, s->slice_us);
    int every = (plan->pipeline + MOST_RANKS - 1) / MOST_RANKS;
    int replica = picture->simulated.simulation->replica;
    for (int rank = 0; rank < plan->pipeline; rank += every) {
        char bytes[32], label[32];
        snprintf(label, sizeof label, "rank %d", rank);
        smp_text_append(text, "%-*s", LABEL, label);
        put_line(s, &picture->predicted.lane[rank], numbers, text);
        smp_text_append(
            text, " %3.0f %%  %s\n", smp__busy_percent(&picture->predicted, rank),
            smp_format_bytes(bytes, sizeof bytes, picture->memory[rank].reserved_bytes));
        if (smp__picture_offloads(picture))
            put_host(s, &picture->predicted.lane[rank], text);
        if (!picture->measured.lane)
            continue;
        smp_text_append(text, "%-*s", LABEL, "measured");
        put_line(s, &picture->measured.lane[rank], numbers, text);
        smp_text_append(text, " %3.0f %%\n", smp__busy_percent(&picture->measured, rank));
    }
    if (every > 1)
        smp_text_append(text, "(one of %d ranks is drawn)\n", every);
    if (replica > 0)
        smp_text_append(text, "(replica %d of %d is drawn, the slowest)\n", replica, plan->ddp);
}

static void put_key(const smp_picture *picture, const strip *s, smp_text *text)
{
    static const char *const names[] = {"forward", "backward", "backward of inputs",
                                        "backward of weights", "optimizer"};
    bool used[SMP__CELL_CLASSES];
    char step[32];
    smp__picture_classes(picture, used);
    smp_text_append(text, "%*s%-*s %s\n", LABEL, "", s->width,
                    smp_format_us(step, sizeof step, smp__picture_end_us(picture)), "busy  peak");
    for (int k = 0; k < SMP__CELL_CLASSES; k++)
        if (used[k])
            smp_text_append(text, "%c %s  ", marks[k], names[k]);
    smp_text_append(
        text, ". idle%s\n",
        smp__picture_offloads(picture) ? "  v stored on the host  ^ loaded again  x both" : "");
}

smp_status smp_picture_text(const smp_picture *picture, int columns, smp_text *text)
{
    columns = columns == 0 ? USUAL_COLUMNS : columns < LEAST_COLUMNS ? LEAST_COLUMNS : columns;
    columns = columns > MOST_COLUMNS ? MOST_COLUMNS : columns;
    strip s = {.width = columns - LABEL - 18}; /* " 100 %  1023.9 MiB" */
    s.slice_us = smp__picture_end_us(picture) / s.width;
    s.busy_us = malloc(SMP__CELL_CLASSES * (size_t)s.width * sizeof *s.busy_us);
    if (!s.busy_us)
        return smp_fail_memory(SMP__CELL_CLASSES * (size_t)s.width * sizeof *s.busy_us);
    put_ranks(picture, &s, text);
    put_key(picture, &s, text);
    free(s.busy_us);
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

smp_status smp_plan_draw_text(const smp_plan *plan, const smp_graph *graph, int columns,
                              smp_text *text)
{
    smp_picture *picture = NULL;
    SMP_TRY(smp_picture_open(plan, graph, &picture));
    smp_status status = smp_picture_text(picture, columns, text);
    smp_picture_close(picture);
    return status;
}

/* The figure (SVG): the timeline and the memory of every rank, static, in the colours of the page,
 * light or dark as the reader prefers. A rank's cells of one colour are one path; a rank with more
 * cells than can be told apart shows the share of each kind over time. Linear in actions. */
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "tools/show/picture_model.h"
#include "tools/show/plan_figures.h"
#include "tools/show/svg.h"

enum {
    WIDTH = 1200,
    LEFT = 74,
    RIGHT = 86,
    TOP = 84,
    PLOT = WIDTH - LEFT - RIGHT,
    BINS = 520, /* columns of a lane that is drawn as shares */
    SHARE_STEPS = 24
};

typedef struct figure {
    const smp_picture *picture;
    smp_text *svg;
    double scale;                 /* units per microsecond */
    double row, measured, memory; /* heights */
    int64_t memory_bytes;         /* that the memory strip is high */
    int label_every;              /* ranks */
} figure;

/* The style of what goes to host memory and comes back. */
static const char host_style[] =
    "<style>.S{fill:#b0708a}.L{fill:#d08a5c}@media(prefers-color-scheme:dark){.S{fill:#c08ba0}"
    ".L{fill:#e0a57c}}</style>\n";

/* A path's command and its number. */
static void put_to(const figure *f, const char *command, double value)
{
    smp_text_append(f->svg, "%s", command);
    smp__svg_number(f->svg, value);
}

static double x_of(const figure *f, double us)
{
    return LEFT + us * f->scale;
}

/* A box as a path: absolute begin, then relative lines. */
static void put_box(const figure *f, double x, double y, double w, double h)
{
    put_to(f, "M", x);
    put_to(f, " ", y);
    put_to(f, "h", w);
    put_to(f, "v", h);
    put_to(f, "h", -w);
    smp_text_append(f->svg, "z");
}

static void put_cells(const figure *f, const smp__lane *lane, double y, double h)
{
    for (int class = 0; class < SMP__CELL_CLASSES; class ++) {
        bool any = false;
        for (int64_t i = 0; i < lane->n; i++) {
            const smp__cell *c = &lane->cell[i];
            double w = (c->end_us - c->start_us) * f->scale;
            if (smp__cell_class(c->kind) != class || w <= 0.0)
                continue;
            if (!any)
                smp_text_append(f->svg, "<path class=\"%c\" d=\"", smp__cell_letters[class]);
            any = true;
            put_box(f, x_of(f, c->start_us), y, w > 2.5 ? w - 0.8 : w > 0.3 ? w : 0.3, h);
        }
        if (any)
            smp_text_append(f->svg, "\"/>\n");
    }
}

static bool occurs(const double bin[SMP__SHARE_BINS])
{
    for (int x = 0; x < SMP__SHARE_BINS; x++)
        if (bin[x] > 0.0)
            return true;
    return false;
}

/* A lane with more cells than can be told apart: each column is divided by what the rank does in
 * it. From the last kind to the first, each as steps under the sum of itself and those before. */
static void put_shares(const figure *f, const smp__lane *lane, double y, double h)
{
    smp__shares bins;
    smp__lane_shares(lane, PLOT / f->scale / SMP__SHARE_BINS, bins);
    for (int class = SMP__CELL_CLASSES - 1; class >= 0; class --) {
        double drawn = 0.0;
        if (!occurs(bins[class]))
            continue;
        smp_text_append(f->svg, "<path class=\"%c\" d=\"M%d ", smp__cell_letters[class], LEFT);
        smp__svg_number(f->svg, y);
        for (int x = 0; x < SMP__SHARE_BINS; x++) {
            double sum = 0.0;
            for (int k = 0; k <= class; k++)
                sum += bins[k][x];
            double level = round(fmin(sum, 1.0) * SHARE_STEPS) / SHARE_STEPS;
            if (fabs(sum - drawn) < 0.75 / SHARE_STEPS || level == drawn)
                continue;
            put_to(f, "H", LEFT + (double)PLOT * x / SMP__SHARE_BINS);
            put_to(f, "V", y + level * h);
            drawn = level;
        }
        smp_text_append(f->svg, "H%dV", LEFT + PLOT);
        smp__svg_number(f->svg, y);
        smp_text_append(f->svg, "z\"/>\n");
    }
}

/* Is there room for the numbers of most cells? A few here and there would only be noise. */
static bool labels_fit(const figure *f, const smp__lane *lane)
{
    int64_t fit = 0;
    int digits = f->picture->plan->microbatches > 10 ? 2 : 1;
    for (int64_t i = 0; i < lane->n; i++)
        fit += (lane->cell[i].end_us - lane->cell[i].start_us) * f->scale >= 6.2 * digits + 2.0;
    return 2 * fit >= lane->n;
}

/* Micro-batch numbers, where they fit. */
static void put_labels(const figure *f, const smp__lane *lane, double y, double h)
{
    bool any = false, shown = h >= 11.0 && labels_fit(f, lane);
    for (int64_t i = 0; shown && i < lane->n; i++) {
        const smp__cell *c = &lane->cell[i];
        char label[16];
        int length = snprintf(label, sizeof label, "%d", (int)c->microbatch);
        double w = (c->end_us - c->start_us) * f->scale;
        if (c->microbatch < 0 || w < 6.2 * length + 2.0)
            continue;
        if (!any)
            smp_text_append(f->svg, "<g class=\"n\">\n");
        any = true;
        smp__svg_text(f->svg, c->kind == SMP_ACTION_F ? "F" : "",
                      x_of(f, c->start_us) + w / 2 - 0.4, y + h / 2 + 3.6, label);
    }
    if (any)
        smp_text_append(f->svg, "</g>\n");
}

static void put_lane(const figure *f, const smp__timeline *timeline, int rank, double y, double h)
{
    const smp__lane *lane = &timeline->lane[rank];
    smp__svg_rect(f->svg, "i", LEFT, y, timeline->end_us * f->scale, h);
    if (lane->n > PLOT / 2)
        put_shares(f, lane, y, h);
    else
        put_cells(f, lane, y, h);
    for (int64_t i = 0; i < lane->n_beside; i++) { /* sums and stores below, gathers, loads above */
        const smp__beside *r = &lane->beside[i];
        const char class[] = {smp__beside_letters[r->kind], '\0'};
        const double thick = h > 12.0 ? 3.0 : 1.5, inset = r->kind > 1 ? thick : 0.0;
        if (r->end_us > r->start_us)
            smp__svg_rect(f->svg, class, x_of(f, r->start_us),
                          r->kind % 2 ? y + inset : y + h - thick - inset,
                          (r->end_us - r->start_us) * f->scale, r->kind > 1 ? 0.7 * thick : thick);
    }
    if (lane->n <= PLOT / 2)
        put_labels(f, lane, y, h);
}

/* The bytes held over time as steps, from `base` up. */
static void put_held(const figure *f, const smp__lane *lane, double base, double per_byte,
                     double end)
{
    double drawn = -1.0;
    smp_text_append(f->svg, "<path class=\"m\" d=\"M%d ", LEFT);
    smp__svg_number(f->svg, base);
    for (int64_t i = 0; i < lane->n; i++) {
        double top = base - (double)lane->cell[i].bytes * per_byte;
        if (fabs(top - drawn) < 0.01)
            continue;
        put_to(f, "H", x_of(f, lane->cell[i].start_us));
        put_to(f, "V", top);
        drawn = top;
    }
    put_to(f, "H", end);
    put_to(f, "V", base);
    smp_text_append(f->svg, "z\"/>\n");
}

/* Bytes over time, the fixed part before them, the limit. */
static void put_memory(const figure *f, int rank, double y)
{
    const smp__rank_memory *m = &f->picture->memory[rank];
    double base = y + f->memory, per_byte = f->memory / (double)f->memory_bytes;
    double end = x_of(f, f->picture->predicted.end_us);
    smp__svg_rect(f->svg, "i", LEFT, y, end - LEFT, f->memory);
    put_held(f, &f->picture->predicted.lane[rank], base, per_byte, end);
    smp__svg_rect(f->svg, "x", LEFT, base - (double)m->fixed_bytes * per_byte, end - LEFT,
                  (double)m->fixed_bytes * per_byte);
    if (f->memory > 8.0 && m->limit_bytes > 0 && m->limit_bytes <= f->memory_bytes) {
        smp_text_append(f->svg, "<path class=\"l\" d=\"M%d ", LEFT);
        smp__svg_number(f->svg, base - (double)m->limit_bytes * per_byte);
        put_to(f, "H", end);
        smp_text_append(f->svg, "\"/>\n");
    }
}

static void put_rank(const figure *f, int rank, double y)
{
    const smp_picture *picture = f->picture;
    char label[80], bytes[32];
    put_lane(f, &picture->predicted, rank, y, f->row);
    if (f->measured > 0.0)
        put_lane(f, &picture->measured, rank, y + f->row + 1.0, f->measured);
    put_memory(f, rank, y + f->row + f->measured + 2.0);
    if (rank % f->label_every)
        return;
    snprintf(label, sizeof label, "rank %d", rank);
    smp__svg_text(f->svg, "r", LEFT - 8, y + f->row / 2 + 4.0, label);
    if (f->measured >= 11.0)
        smp__svg_text(f->svg, "r s", LEFT - 8, y + f->row + f->measured / 2 + 5.0, "measured");
    snprintf(label, sizeof label, "%.0f %% busy", smp__busy_percent(&picture->predicted, rank));
    smp__svg_text(f->svg, "s", WIDTH - RIGHT + 8, y + f->row / 2 + 4.0, label);
    if (f->memory >= 11.0)
        smp__svg_text(f->svg, "s", WIDTH - RIGHT + 8,
                      y + f->row + f->measured + f->memory / 2 + 6.0,
                      smp_format_bytes(bytes, sizeof bytes, picture->memory[rank].reserved_bytes));
}

static void put_title(const figure *f)
{
    const smp_plan *plan = f->picture->plan;
    char step[32], measured[32];
    smp_text line = {0};
    smp_text_append(&line, "%s: %s, %d rank%s x %d micro-batch%s", plan->model_name, plan->schedule,
                    plan->pipeline, plan->pipeline == 1 ? "" : "s", plan->microbatches,
                    plan->microbatches == 1 ? "" : "es");
    char tensor[32];
    if (smp_plan_tensor(plan) > 1)
        smp_text_append(&line, ", tensor %s", smp_format_tensor(tensor, sizeof tensor, plan));
    smp__svg_text(f->svg, "t", 16, 27, line.data ? line.data : "");
    line.length = 0;
    smp_text_append(&line, "step %s, bubble %.1f %%",
                    smp_format_us(step, sizeof step, f->picture->predicted.end_us),
                    100.0 * f->picture->bubble);
    if (plan->predicted.step_lower_bound_us > 0.0)
        smp_text_append(&line, ", at most %.1f %% above its proven lower bound",
                        100.0 * plan->predicted.step_gap);
    else if (plan->predicted.lower_bound_us > 0.0)
        smp_text_append(&line, ", bottleneck at most %.1f %% above its proven lower bound",
                        100.0 * plan->predicted.gap);
    if (f->picture->measured.lane)
        smp_text_append(&line, "; measured %s, drawn below the prediction",
                        smp_format_us(measured, sizeof measured, f->picture->measured.end_us));
    if (f->picture->simulated.simulation->replica > 0)
        smp_text_append(&line, "; replica %d of %d, the slowest",
                        f->picture->simulated.simulation->replica, plan->ddp);
    smp__svg_text(f->svg, "s", 16, 46, line.data ? line.data : "");
    f->svg->failed = f->svg->failed || line.failed;
    smp_text_free(&line);
}

/* To the left of *x, which moves on. */
static void put_swatch(const figure *f, const char *class, const char *name, double *x)
{
    double width = 0;
    for (const char *c = name; *c; c++)
        width += 6.5;
    smp__svg_text(f->svg, "s r", *x, 27, name);
    smp__svg_rect(f->svg, class, *x - width - 14, 18, 10, 10);
    *x -= width + 30;
}

static void put_legend(const figure *f)
{
    static const char *const names[SMP__CELL_CLASSES] = {"forward", "backward", "backward, inputs",
                                                         "backward, weights", "optimizer"};
    bool used[SMP__CELL_CLASSES];
    double x = WIDTH - RIGHT - 6;
    smp__picture_classes(f->picture, used);
    if (smp__picture_offloads(f->picture)) {
        put_swatch(f, "L", "loaded again", &x);
        put_swatch(f, "S", "stored on the host", &x);
    }
    for (int class = SMP__CELL_CLASSES - 1; class >= 0; class --) {
        char name[2] = {smp__cell_letters[class], '\0'};
        if (used[class])
            put_swatch(f, name, names[class], &x);
    }
}

/* Grid lines and times at round numbers. */
static void put_axis(const figure *f, double bottom)
{
    static const double nice[] = {1.0, 2.0, 5.0, 10.0};
    double end_us = smp__picture_end_us(f->picture),
           power_us = pow(10.0, floor(log10(end_us / 10)));
    double step_us = power_us;
    for (int i = 0; i < 4 && end_us / step_us > 11.0; i++)
        step_us = nice[i] * power_us;
    for (int i = 0; i * step_us <= end_us * (1 + 1e-12); i++) {
        double at_us = i * step_us;
        char label[32];
        if (end_us >= 1e6)
            snprintf(label, sizeof label, "%g s", at_us / 1e6);
        else
            snprintf(label, sizeof label, end_us >= 1e3 ? "%g ms" : "%g us",
                     end_us >= 1e3 ? at_us / 1e3 : at_us);
        smp_text_append(f->svg, "<path class=\"g\" d=\"M");
        smp__svg_number(f->svg, x_of(f, at_us));
        smp_text_append(f->svg, " %dV", TOP - 8);
        smp__svg_number(f->svg, bottom);
        smp_text_append(f->svg, "\"/>\n");
        smp__svg_text(f->svg, "s c", x_of(f, at_us), TOP - 14, label);
    }
}

static int64_t memory_scale(const smp_picture *picture)
{
    int64_t most = 1, limit = 0;
    for (int rank = 0; rank < picture->plan->pipeline; rank++) {
        const smp__rank_memory *m = &picture->memory[rank];
        most = m->reserved_bytes > most ? m->reserved_bytes : most;
        limit = m->limit_bytes > limit ? m->limit_bytes : limit;
    }
    /* A far limit would flatten all, and low strips have no room for it. */
    return picture->plan->pipeline <= 16 && limit > most && most > limit / 3 ? limit : most;
}

/* The more ranks, the lower their rows. */
static figure figure_of(const smp_picture *picture, smp_text *svg)
{
    static const struct {
        int ranks;
        double row, memory;
    } sizes[] = {{8, 26, 16}, {16, 18, 11}, {32, 12, 7}, {INT_MAX, 8, 5}};
    int ranks = picture->plan->pipeline, i = 0;
    while (ranks > sizes[i].ranks)
        i++;
    return (figure){.picture = picture,
                    .svg = svg,
                    .scale = PLOT / smp__picture_end_us(picture),
                    .row = sizes[i].row,
                    .measured = picture->measured.lane ? sizes[i].row : 0.0,
                    .memory = sizes[i].memory,
                    .memory_bytes = memory_scale(picture),
                    .label_every = ranks <= 32 ? 1 : 2};
}

static void put_frame(const figure *f, double height)
{
    smp_text_append(
        f->svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
        "height=\"%.0f\" role=\"img\">\n%s",
        WIDTH, height, WIDTH, height, smp__svg_style);
    if (smp__picture_offloads(f->picture))
        smp_text_append(f->svg, "%s", host_style);
    smp_text_append(f->svg, "<title>");
    smp__svg_escaped(f->svg, f->picture->plan->model_name);
    smp_text_append(f->svg, ": timeline and memory of %d ranks</title>\n",
                    f->picture->plan->pipeline);
    smp_text_append(f->svg,
                    "<rect class=\"bg\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%.0f\" "
                    "rx=\"6\"/>\n",
                    WIDTH - 1, height - 1);
}

smp_status smp_picture_svg(const smp_picture *picture, smp_text *svg)
{
    int ranks = picture->plan->pipeline;
    figure f = figure_of(picture, svg);
    double pitch = f.row + f.measured + f.memory + 2.0 + (ranks <= 16 ? 8 : 3);
    double height = TOP + ranks * pitch + 12;
    put_frame(&f, height);
    put_title(&f);
    put_legend(&f);
    put_axis(&f, height - 12);
    for (int rank = 0; rank < ranks; rank++)
        put_rank(&f, rank, TOP + rank * pitch);
    smp_text_append(svg, "</svg>\n");
    return svg->failed ? smp_fail_memory(svg->capacity) : SMP_OK;
}

/* What a run tells of itself, as HTML that needs no script: a figure for each curve, where the time
 * of a step went, memory. A curve is a band from the least to the greatest value of a point and a
 * line through the means, so a page has the same size for a hundred steps and a million. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/show/picture_model.h"
#include "tools/show/svg.h"

enum { WIDE = 560, HIGH = 190, LEFT = 62, TOP = 10, PLOT = WIDE - LEFT - 12, FLOOR = HIGH - 24 };

/* A figure: steps to the right, values up. */
typedef struct figure {
    smp_text *html;
    int64_t first, last;
    double low, high;
    const char *format; /* of values */
    double scale;       /* ... which are multiplied by it */
} figure;

static double x_of(const figure *f, double step)
{
    const double span = f->last > f->first ? (double)(f->last - f->first) : 1.0;
    return LEFT + PLOT * fmin(fmax((step - (double)f->first) / span, 0.0), 1.0);
}

static double y_of(const figure *f, double value)
{
    return FLOOR - (FLOOR - TOP) * (value - f->low) / (f->high - f->low);
}

static bool is_empty(const smp_curve *c)
{
    for (int i = 0; i < c->n; i++)
        if (c->count[i] > 0)
            return false;
    return true;
}

static void widen(figure *f, const smp_curve *c)
{
    for (int i = 0; i < c->n; i++)
        if (c->count[i] > 0) {
            f->low = fmin(f->low, c->low[i]);
            f->high = fmax(f->high, c->high[i]);
        }
}

static void put_axes(const figure *f)
{
    const double step = smp__svg_grid_step(f->high - f->low);
    char text[48];
    for (double v = ceil(f->low / step - 1e-9) * step; v <= f->high + 1e-9 * step; v += step) {
        snprintf(text, sizeof(text), f->format, (fabs(v) < 1e-9 * step ? 0.0 : v) * f->scale);
        smp_text_append(f->html,
                        "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f'/><text x='%d' y='%.1f' "
                        "text-anchor='end'>%s</text>",
                        LEFT, LEFT + PLOT, y_of(f, v), y_of(f, v), LEFT - 7, y_of(f, v) + 4.0,
                        text);
    }
    smp_text_append(f->html,
                    "<text x='%d' y='%d'>step %" PRId64 "</text><text x='%d' y='%d' "
                    "text-anchor='end'>%" PRId64 "</text>",
                    LEFT, HIGH - 6, f->first, LEFT + PLOT, HIGH - 6, f->last);
}

static double middle_step(const smp_curve *c, int i)
{
    const double to = fmin((double)c->first + (double)c->stride * (i + 1) - 1.0, (double)c->last);
    return 0.5 * ((double)c->first + (double)c->stride * i + to);
}

static void put_band(const figure *f, const smp_curve *c)
{
    if (c->stride == 1)
        return;
    smp_text_append(f->html, "<path class='band' d='");
    for (int i = 0; i < c->n; i++)
        if (c->count[i] > 0)
            smp_text_append(f->html, "M%.1f %.1fV%.1f", x_of(f, middle_step(c, i)),
                            y_of(f, c->low[i]) + 0.5, y_of(f, c->high[i]) - 0.5);
    smp_text_append(f->html, "'/>");
}

/* A gap where nothing is finite. */
static void put_line(const figure *f, const smp_curve *c)
{
    bool on = false;
    smp_text_append(f->html, "<path class='curve' d='");
    for (int i = 0; i < c->n; i++) {
        if (c->count[i] > 0)
            smp_text_append(f->html, "%c%.1f %.1f", on ? 'L' : 'M', x_of(f, middle_step(c, i)),
                            y_of(f, c->sum[i] / (double)c->count[i]));
        on = c->count[i] > 0;
    }
    smp_text_append(f->html, "'/>");
}

static void put_dots(const figure *f, const smp_curve *c)
{
    for (int i = 0; i < c->n; i++)
        if (c->count[i] > 0)
            smp_text_append(f->html, "<circle cx='%.1f' cy='%.1f' r='2.6'/>",
                            x_of(f, middle_step(c, i)), y_of(f, c->sum[i] / (double)c->count[i]));
}

/* dots: a second curve, may be NULL; planned: a level, <= 0: none. */
static void put_figure(smp_text *html, const char *title, const char *aside, const smp_curve *c,
                       const smp_curve *dots, double planned, const char *format, double scale)
{
    figure f = {html, c->first, c->last, INFINITY, -INFINITY, format, scale};
    if (is_empty(c))
        return;
    widen(&f, c);
    if (dots)
        widen(&f, dots);
    if (planned > 0.0) {
        f.low = fmin(f.low, planned);
        f.high = fmax(f.high, planned);
    }
    const double room = fmax(0.06 * (f.high - f.low), 1e-3 * fabs(f.high) + 1e-12);
    f.low = f.low >= 0.0 && f.low < 0.35 * f.high ? 0.0 : f.low - room;
    f.high += room;
    smp_text_append(html,
                    "<figure><figcaption>%s <span>%s</span></figcaption><svg viewBox='0 0 %d %d' "
                    "role='img' aria-label='%s over the steps'>",
                    title, aside, WIDE, HIGH, title);
    put_axes(&f);
    put_band(&f, c);
    put_line(&f, c);
    if (planned > 0.0)
        smp_text_append(html, "<path class='planned' d='M%d %.1fH%d'/>", LEFT, y_of(&f, planned),
                        LEFT + PLOT);
    if (dots)
        put_dots(&f, dots);
    smp_text_append(html, "</svg></figure>\n");
}

static double total_us(const smp_rank_time *t)
{
    double sum = 0.0;
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        sum += t->us[i];
    return sum;
}

static void put_us(smp_text *html, double us)
{
    char text[32];
    smp_text_append(html, "<td>%s</td>", smp_format_us(text, sizeof(text), us));
}

static void put_bytes(smp_text *html, int64_t bytes)
{
    char text[32];
    if (bytes > 0)
        smp_text_append(html, "<td>%s</td>", smp_format_bytes(text, sizeof(text), bytes));
    else
        smp_text_append(html, "<td>&ndash;</td>");
}

static bool is_used(const smp_run_record *run, int cause)
{
    for (int i = 0; i < run->n_rank; i++)
        if (run->rank[i].us[cause] >= 0.05)
            return true;
    return false;
}

static void put_stack(smp_text *html, const smp_rank_time *t, double most_us)
{
    char text[32];
    smp_text_append(html, "<td class='left'><div class='stack'>");
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        if (t->us[i] > 0.0)
            smp_text_append(html,
                            "<i title='%s %s' style='flex:0 0 %.2f%%;background:var(--%s)'></i>",
                            smp_time_forms[i].text, smp_format_us(text, sizeof(text), t->us[i]),
                            100.0 * t->us[i] / most_us, smp_time_forms[i].colour);
    smp_text_append(html, "</div></td>");
}

static void put_time_row(smp_text *html, const smp_run_record *run, int i, double most_us)
{
    const smp_rank_time *t = &run->rank[i];
    smp_text_append(html, "<tr><td>%d</td>", i);
    put_stack(html, t, most_us);
    for (int k = 0; k < SMP_TIME_N_CAUSES; k++)
        if (is_used(run, k))
            put_us(html, t->us[k]);
    if (t->slow_replica >= 0 && t->slow_us > t->peer_us)
        smp_text_append(html, "<td>replica %d</td>", t->slow_replica);
    else if (t->peer >= 0)
        smp_text_append(html, "<td>pipeline rank %d</td>", t->peer);
    else
        smp_text_append(html, "<td>&ndash;</td>");
    if (t->has_predicted) {
        const double *us = t->predicted_us;
        put_us(html, us[SMP_TIME_FORWARD] + us[SMP_TIME_BACKWARD] + us[SMP_TIME_OPTIMIZER]);
        put_us(html, us[SMP_TIME_MESSAGES] + us[SMP_TIME_OFFLOAD] + us[SMP_TIME_SUMS]);
    } else {
        smp_text_append(html, "<td>&ndash;</td><td>&ndash;</td>");
    }
    smp_text_append(html, "</tr>\n");
}

static void put_times(smp_text *html, const smp_run_record *run)
{
    double most_us = 1e-9;
    for (int i = 0; i < run->n_rank; i++)
        most_us = fmax(most_us, total_us(&run->rank[i]));
    smp_text_append(html, "<div class='bar'><h2>Time by cause</h2><ul>");
    for (int k = 0; k < SMP_TIME_N_CAUSES; k++)
        if (is_used(run, k))
            smp_text_append(html, "<li><i style='background:var(--%s)'></i>%s</li>",
                            smp_time_forms[k].colour, smp_time_forms[k].text);
    smp_text_append(html,
                    "</ul><span class='aside'>mean of %" PRId64
                    " steps, measured</span></div><div class='plot scroll'>"
                    "<table id='times'><tr><th>Rank</th><th class='left'>Step and data</th>",
                    run->steps);
    for (int k = 0; k < SMP_TIME_N_CAUSES; k++)
        if (is_used(run, k))
            smp_text_append(html, "<th>%s</th>", smp_time_forms[k].text);
    smp_text_append(html, "<th>most from</th><th>plan: work</th>"
                          "<th>plan: waiting</th></tr>\n");
    for (int i = 0; i < run->n_rank; i++)
        put_time_row(html, run, i, most_us);
    smp_text_append(html, "</table></div>\n");
}

static void put_memory(smp_text *html, const smp_run_record *run)
{
    smp_text_append(html,
                    "<div class='bar'><h2>Memory of the run</h2><span class='aside'>resident: "
                    "the most that the process had, libraries and data included</span></div>"
                    "<div class='plot scroll'><table id='resident'><tr><th>Rank</th>"
                    "<th>Predicted</th><th>Arena</th><th>Resident</th></tr>\n");
    for (int i = 0; i < run->n_rank; i++) {
        smp_text_append(html, "<tr><td>%d</td>", i);
        put_bytes(html, run->rank[i].predicted_bytes);
        put_bytes(html, run->rank[i].arena_bytes);
        put_bytes(html, run->rank[i].resident_bytes);
        smp_text_append(html, "</tr>\n");
    }
    smp_text_append(html, "</table></div>\n");
}

void smp_run_record_html(const smp_run_record *run, smp_text *html)
{
    smp_text_append(html, "<div class='bar'><h2>Run</h2><span class='aside'>a line through the "
                          "means, a band from least to most where a point is several steps; "
                          "dashed: the plan</span></div>\n<div class='curves'>\n");
    const bool evaluated = !is_empty(&run->eval_loss);
    put_figure(html, "Loss", evaluated ? "dots: evaluations" : "", &run->loss,
               evaluated ? &run->eval_loss : NULL, 0.0, "%.4g", 1.0);
    put_figure(html, "Throughput", "samples/s", &run->samples_per_s, NULL,
               run->predicted_samples_per_s, "%.4g", 1.0);
    put_figure(html, "Learning rate", "", &run->lr, NULL, 0.0, "%.3g", 1.0);
    put_figure(html, "Bubble", "idle share of all ranks", &run->bubble, NULL, run->predicted_bubble,
               "%.3g %%", 100.0);
    put_figure(html, "Gradient norm", "before clipping", &run->grad_norm, NULL, 0.0, "%.3g", 1.0);
    smp_text_append(html, "</div>\n");
    if (run->n_rank > 0 && run->steps > 0)
        put_times(html, run);
    if (run->n_rank > 0)
        put_memory(html, run);
}

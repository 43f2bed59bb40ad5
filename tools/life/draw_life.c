/* The life of a job as a figure and a section of the page: devices at hand and in use over time,
 * what recoveries consist of, throughput below, and a row for everything that happened. Linear in
 * what is in the life. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tools/life/job_life.h"
#include "tools/show/svg.h"

enum {
    WIDTH = 1100,
    LEFT = 56,
    PLOT = WIDTH - LEFT - 20,
    KEY = 34, /* y of the legend */
    TOP = 66, /* of devices */
    FLOOR = TOP + 120,
    RATE_TOP = FLOOR + 26,
    RATE_FLOOR = RATE_TOP + 90,
    HEIGHT = RATE_FLOOR + 32,
    LABEL = 14,     /* between numbers of what happened */
    MOST_ROWS = 500 /* of the table */
};

static const char style[] =
    "<style>.lh{fill:#dfe3e8}.lu{fill:#2f6db3}.ld{fill:#b3261e}.lw{fill:#aeb5bf}.lp{fill:#7a5aa6}"
    ".lr{fill:#efa43f}.ll{fill:#d9662b}.lg{stroke:#e2e4e8;fill:none}"
    ".lk{stroke:#565e69;stroke-dasharray:2 3;fill:none}"
    ".lv{stroke:#2f6db3;stroke-width:1.6;fill:none}.lc{text-anchor:middle}.le{text-anchor:end}"
    "@media(prefers-color-scheme:dark){.lh{fill:#333a42}.lu{fill:#3f80c9}.ld{fill:#f2837a}"
    ".lw{fill:#6b737d}.lp{fill:#a98bd6}.lr{fill:#f2b253}.ll{fill:#e07b3e}.lg{stroke:#2c3239}"
    ".lk{stroke:#a6adb7}.lv{stroke:#3f80c9}}</style>\n";

typedef struct drawing {
    const smp__life *life;
    smp_text *svg;
    double length_s, most_per_s;
} drawing;

static double x_of(const drawing *d, double s)
{
    return LEFT + PLOT * fmin(fmax(s / d->length_s, 0.0), 1.0);
}

static double device_y(const drawing *d, double devices)
{
    const double most = d->life->most > 0 ? d->life->most : 1;
    return FLOOR - (FLOOR - TOP) * fmin(devices / most, 1.0);
}

static double rate_y(const drawing *d, double per_s)
{
    return RATE_FLOOR - (RATE_FLOOR - RATE_TOP) * per_s / (1.05 * d->most_per_s);
}

static void put_path(const drawing *d, const char *class)
{
    smp_text_append(d->svg, "<path class=\"%s\" d=\"", class);
}

static void put_to(const drawing *d, const char *command, double value)
{
    smp_text_append(d->svg, "%s", command);
    smp__svg_number(d->svg, value);
}

/* A line of the grid at y, and its value before it. */
static void put_grid(const drawing *d, double y, double value)
{
    char text[32];
    put_path(d, "lg");
    put_to(d, "M", LEFT);
    put_to(d, " ", y);
    smp_text_append(d->svg, "h%d\"/>\n", PLOT);
    snprintf(text, sizeof text, "%.4g", value);
    smp__svg_text(d->svg, "le", LEFT - 8, y + 4.0, text);
}

static void put_times(const drawing *d)
{
    static const struct {
        double s;
        const char *name;
    } units[] = {{1.0, "s"}, {60.0, "min"}, {3600.0, "h"}, {86400.0, "d"}};
    char text[48];
    int u = 0;
    while (u < 3 && d->length_s > 3.0 * units[u + 1].s)
        u++;
    const double step = 0.5 * smp__svg_grid_step(d->length_s / units[u].s);
    for (int i = 0; i * step * units[u].s <= d->length_s * (1.0 + 1e-9); i++) {
        snprintf(text, sizeof text, "%.4g %s", i * step, units[u].name);
        smp__svg_text(d->svg, "lc", x_of(d, i * step * units[u].s), RATE_FLOOR + 20, text);
    }
}

/* Steps under the number of devices at hand. */
static void put_at_hand(const drawing *d)
{
    const smp__life *l = d->life;
    if (l->n_level == 0)
        return;
    put_path(d, "lh");
    put_to(d, "M", x_of(d, l->level[0].at_s));
    put_to(d, " ", FLOOR);
    for (int i = 0; i < l->n_level; i++) {
        put_to(d, "H", x_of(d, l->level[i].at_s));
        put_to(d, "V", device_y(d, l->level[i].devices));
    }
    put_to(d, "H", x_of(d, d->length_s));
    put_to(d, "V", FLOOR);
    smp_text_append(d->svg, "z\"/>\n");
}

/* Devices that do steps, or are about to: however short, it can be seen. */
static void put_spans(const drawing *d)
{
    for (int i = 0; i < d->life->n_span; i++) {
        const smp__life_span *s = &d->life->span[i];
        const char class[] = {'l', *smp__life_forms[s->part].letter, '\0'};
        const double y = device_y(d, s->devices), x = x_of(d, s->from_s);
        smp__svg_rect(d->svg, class, x, y, fmax(x_of(d, s->to_s) - x, 0.7), FLOOR - y);
    }
}

static void put_devices(const drawing *d)
{
    const double step = fmax(1.0, smp__svg_grid_step(fmax(d->life->most, 1)));
    put_at_hand(d);
    put_spans(d);
    for (double n = 0.0; n <= d->life->most; n += step)
        put_grid(d, device_y(d, n), n);
}

static void put_rates(const drawing *d)
{
    const smp__life *l = d->life;
    double end_s = -1.0;
    if (l->n_rate == 0)
        return;
    const double step = smp__svg_grid_step(1.05 * d->most_per_s);
    for (double v = 0.0; v <= 1.05 * d->most_per_s; v += step)
        put_grid(d, rate_y(d, v), v);
    put_path(d, "lv");
    for (int i = 0; i < l->n_rate; i++) {
        const bool on = l->rate[i].from_s <= end_s + 1e-3;
        if (!on)
            put_to(d, "M", x_of(d, l->rate[i].from_s));
        put_to(d, on ? "V" : " ", rate_y(d, l->rate[i].per_s));
        put_to(d, "H", x_of(d, l->rate[i].to_s));
        end_s = l->rate[i].to_s;
    }
    smp_text_append(d->svg, "\"/>\n");
    smp__svg_text(d->svg, "", LEFT, RATE_TOP - 8, l->in_samples ? "samples/s" : "steps/s");
}

/* A dashed line at everything that happened, with its number where there is room. */
static void put_turns(const drawing *d)
{
    double labelled = -LABEL;
    char number[16];
    for (int i = 0; i < d->life->n_turn; i++) {
        const smp__life_turn *turn = &d->life->turn[i];
        const double x = x_of(d, turn->at_s);
        snprintf(number, sizeof number, "%d", i + 1);
        smp_text_append(d->svg, "<g><title>%s: ", number);
        smp__svg_escaped(d->svg, turn->what);
        smp_text_append(d->svg, "</title>");
        put_path(d, "lk");
        put_to(d, "M", x);
        put_to(d, " ", TOP - 6);
        put_to(d, "V", FLOOR);
        smp_text_append(d->svg, "\"/>");
        if (x >= labelled + LABEL) {
            smp__svg_text(d->svg, "lc", x, TOP - 10, number);
            labelled = x;
        }
        smp_text_append(d->svg, "</g>\n");
    }
}

static void put_legend(const drawing *d)
{
    double x = LEFT;
    for (int i = -1; i < SMP__LIFE_N_PARTS; i++) {
        const char class[] = {'l', i < 0 ? 'h' : *smp__life_forms[i].letter, '\0'};
        const char *text = i < 0                  ? "devices at hand"
                           : i == SMP__LIFE_STEPS ? "in use"
                                                  : smp__life_forms[i].text;
        if (i == SMP__LIFE_PAUSE && d->life->part_s[i] == 0.0)
            continue;
        smp__svg_rect(d->svg, class, x, KEY - 9, 11, 11);
        smp__svg_text(d->svg, "", x + 16, KEY + 1, text);
        x += i < 0 ? 120 : i == SMP__LIFE_STEPS ? 80 : 64;
    }
}

static void put_inside(const drawing *d)
{
    put_legend(d);
    put_devices(d);
    put_rates(d);
    put_turns(d);
    put_times(d);
}

static drawing draw(const smp__life *life, smp_text *svg)
{
    drawing d = {life, svg, fmax(life->length_s, 1e-3), 1e-9};
    for (int i = 0; i < life->n_rate; i++)
        d.most_per_s = fmax(d.most_per_s, life->rate[i].per_s);
    return d;
}

/* What it came to, as the supervisor says it when a job ends. */
static void put_sums(const smp__life *l, smp_text *text)
{
    const double *s = l->part_s;
    const double share = l->length_s > 0.0 ? s[SMP__LIFE_STEPS] / l->length_s : 0.0;
    smp_text_append(text,
                    "%" PRId64 " steps; %d failure%s, %d change%s of devices, %d supervisor%s, "
                    "%" PRId64 " step%s lost; detected in %.1f s, planned in %.1f s, started in "
                    "%.1f s, loaded in %.1f s; %.1f %% of %.1f s in steps that count",
                    l->steps, l->failures, l->failures == 1 ? "" : "s", l->changes,
                    l->changes == 1 ? "" : "s", l->supervisors, l->supervisors == 1 ? "" : "s",
                    l->lost_steps, l->lost_steps == 1 ? "" : "s", s[SMP__LIFE_DETECT],
                    s[SMP__LIFE_PLAN], s[SMP__LIFE_START], s[SMP__LIFE_LOAD], 100.0 * share,
                    l->length_s);
}

void smp__life_svg(const smp__life *life, smp_text *svg)
{
    const drawing d = draw(life, svg);
    smp_text sums = {0};
    put_sums(life, &sums);
    smp_text_append(svg,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                    "height=\"%d\">\n%s%s",
                    WIDTH, HEIGHT, WIDTH, HEIGHT, smp__svg_style, style);
    smp__svg_rect(svg, "bg", 0, 0, WIDTH, HEIGHT);
    smp__svg_text(svg, "s", LEFT, 16, sums.data ? sums.data : "");
    put_inside(&d);
    smp_text_append(svg, "</svg>\n");
    svg->failed = svg->failed || sums.failed;
    smp_text_free(&sums);
}

static void put_row(const smp__life *l, int i, smp_text *html)
{
    const smp__life_turn *t = &l->turn[i];
    double sum_s = 0.0;
    smp_text_append(html, "<tr><td>%d</td><td>%.1f s</td><td class='left'>", i + 1, t->at_s);
    smp__svg_escaped(html, t->what);
    smp_text_append(html, "</td><td>%" PRId64 "</td>", t->step);
    if (!t->resumed) {
        for (int k = 0; k < 4 + SMP__LIFE_N_PARTS - 1; k++)
            smp_text_append(html, "<td>&ndash;</td>");
        smp_text_append(html, "</tr>\n");
        return;
    }
    smp_text_append(html, "<td>%d &rarr; %d</td><td>", t->before, t->after);
    smp__svg_escaped(html, t->from);
    smp_text_append(html, "</td><td>%" PRId64 "</td>", t->lost_steps);
    for (int k = SMP__LIFE_STEPS + 1; k < SMP__LIFE_N_PARTS; k++) {
        smp_text_append(html, "<td>%.2f s</td>", t->part_s[k]);
        sum_s += t->part_s[k];
    }
    smp_text_append(html, "<td>%.2f s</td></tr>\n", sum_s);
}

static void put_table(const smp__life *l, smp_text *html)
{
    const int first = l->n_turn > MOST_ROWS ? l->n_turn - MOST_ROWS : 0;
    smp_text_append(html, "<div class='plot scroll'><table id='life'><tr><th>No.</th><th>at</th>"
                          "<th class='left'>What</th><th>step</th><th>devices</th><th>from</th>"
                          "<th>steps lost</th>");
    for (int k = SMP__LIFE_STEPS + 1; k < SMP__LIFE_N_PARTS; k++)
        smp_text_append(html, "<th>%s</th>", smp__life_forms[k].text);
    smp_text_append(html, "<th>together</th></tr>\n");
    for (int i = first; i < l->n_turn; i++)
        put_row(l, i, html);
    smp_text_append(html, "</table></div>\n");
    if (first > 0)
        smp_text_append(html, "<p class='aside'>The first %d are left out.</p>\n", first);
}

void smp__life_html(const smp__life *life, smp_text *html)
{
    const drawing d = draw(life, html);
    smp_text_append(html, "<div class='bar'><h2>Life of the job</h2><span class='aside'>");
    put_sums(life, html);
    smp_text_append(
        html,
        "</span></div>\n<figure><svg viewBox='0 0 %d %d' role='img' aria-label='devices "
        "and throughput over time; the table below has every event'>\n%s",
        WIDTH, HEIGHT, style);
    put_inside(&d);
    smp_text_append(html, "</svg></figure>\n");
    put_table(life, html);
    if (life->skipped > 0) {
        smp_text_append(html, "<p class='aside'>%" PRId64 " line%s: ", life->skipped,
                        life->skipped == 1 ? " of the file is no event"
                                           : "s of the file are no events");
        smp__svg_escaped(html, life->first_skipped);
        smp_text_append(html, "</p>\n");
    }
}

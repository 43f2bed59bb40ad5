/* Plans as bars: each as long as a sample takes, in the colours of where the time goes. Static,
 * light or dark as the reader prefers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/partition/comparison.h"
#include "tools/show/svg.h"

enum {
    WIDTH = 1000,
    LEFT = 230,
    RIGHT = 190,
    TOP = 60,
    ROW = 30,
    BAR = 18,
    PLOT = WIDTH - LEFT - RIGHT
};

static const char style[] =
    "<style>\n"
    "text{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',"
    "'DejaVu Sans',Arial,sans-serif;font-size:12px;fill:#1b1f24}\n"
    ".r{text-anchor:end}.s{fill:#565e69}.bg{fill:#fff}\n"
    ".k0{fill:#2f6db3}.k1{fill:#b9c0ca}.k2{fill:#efa43f}.k3{fill:#d9662b}.k4{fill:#7a5aa6}\n"
    "@media(prefers-color-scheme:dark){text{fill:#e7e9ec}.s{fill:#a6adb7}.bg{fill:#1a1e23}"
    ".k0{fill:#3f80c9}.k1{fill:#4a525d}.k2{fill:#f2b253}.k3{fill:#e07b3e}.k4{fill:#a98bd6}}\n"
    "</style>\n";

static double sample_s(const smp_compared *row)
{
    return row->made && row->samples_per_s > 0.0 ? 1.0 / row->samples_per_s : 0.0;
}

static void put_bar(const smp_compared *row, double longest_s, double y, smp_text *svg)
{
    double x = LEFT, shares = 0.0;
    const double width = PLOT * sample_s(row) / longest_s;
    for (int k = 0; k < SMP_TIME_SHARES; k++)
        shares += row->share[k];
    for (int k = 0; k < SMP_TIME_SHARES; k++) {
        const double w = shares > 0.0 ? width * row->share[k] : k == SMP_TIME_COMPUTE ? width : 0.0;
        const char class[] = {'k', (char)('0' + k), '\0'};
        if (w > 0.0)
            smp__svg_rect(svg, class, x, y, w, BAR);
        x += w;
    }
}

static void put_plan(const smp_compared *row, double longest_s, double y, smp_text *svg)
{
    char speed[96], count[32];
    smp__svg_text(svg, "r", LEFT - 10, y + BAR - 4, row->name);
    if (!row->made) {
        smp__svg_text(svg, "s", LEFT, y + BAR - 4, row->reason);
        return;
    }
    put_bar(row, longest_s, y, svg);
    const bool tokens = row->figures.tokens_per_s > 0.0;
    snprintf(speed, sizeof speed, "%s %s/s",
             smp_format_count(count, sizeof count,
                              tokens ? row->figures.tokens_per_s : row->samples_per_s),
             tokens ? "tokens" : "samples");
    if (row->figures.mfu > 0.0)
        snprintf(speed + strlen(speed), sizeof speed - strlen(speed), ", MFU %.1f %%",
                 100.0 * row->figures.mfu);
    smp__svg_text(svg, "s", WIDTH - RIGHT + 10, y + BAR - 4, speed);
}

static void put_legend(smp_text *svg)
{
    double x = LEFT;
    for (int k = 0; k < SMP_TIME_SHARES; k++) {
        const char class[] = {'k', (char)('0' + k), '\0'};
        smp__svg_rect(svg, class, x, 36, 10, 10);
        smp__svg_text(svg, "s", x + 15, 45, smp_time_share_names[k]);
        x += 30 + 7.0 * (double)strlen(smp_time_share_names[k]);
    }
}

smp_status smp_comparison_svg(const smp_comparison *comparison, smp_text *svg)
{
    const int height = TOP + ROW * comparison->n + 20;
    double longest_s = 1e-30;
    for (int i = 0; i < comparison->n; i++)
        longest_s = fmax(longest_s, sample_s(&comparison->row[i]));
    smp_text_append(svg,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                    "height=\"%d\">\n%s",
                    WIDTH, height, WIDTH, height, style);
    smp__svg_rect(svg, "bg", 0, 0, WIDTH, height);
    smp__svg_text(svg, "t", 16, 22, "Time of a sample, predicted, by where it goes");
    put_legend(svg);
    for (int i = 0; i < comparison->n; i++)
        put_plan(&comparison->row[i], longest_s, TOP + ROW * i, svg);
    smp_text_append(svg, "</svg>\n");
    return svg->failed ? smp_fail_memory(svg->capacity) : SMP_OK;
}

/* Elements of a figure; see the header. */
#include "tools/show/svg.h"

#include <math.h>
#include <stdio.h>

const char smp__svg_style[] =
    "<style>\n"
    "text{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',"
    "'DejaVu Sans',Arial,sans-serif;font-size:11px;fill:#1b1f24}\n"
    ".t{font-size:15px;font-weight:600}.s{fill:#565e69}.c{text-anchor:middle}.r{text-anchor:end}\n"
    ".n text{font-size:10px;text-anchor:middle;fill:#20242a}.n .F{fill:#fff}\n"
    ".bg{fill:#fff;stroke:#e2e4e8}.i{fill:#eef0f2}.g{stroke:#e2e4e8}\n"
    ".F{fill:#2f6db3}.B{fill:#efa43f}.I{fill:#d9662b}.W{fill:#cbd97f}.O{fill:#454b55}.R{fill:#"
    "7a5aa6}.G{fill:#3f8f6b}\n"
    ".m{fill:#c7d6e6}.x{fill:#8fa3b8}.l{stroke:#b3261e}\n"
    "@media(prefers-color-scheme:dark){text{fill:#e7e9ec}.s{fill:#a6adb7}.bg{fill:#1a1e23;"
    "stroke:#2c3239}.i{fill:#262c32}.g{stroke:#2c3239}.F{fill:#3f80c9}.B{fill:#f2b253}"
    ".I{fill:#e07b3e}.W{fill:#d5e296}.O{fill:#9aa2ad}.R{fill:#a98bd6}.G{fill:#6fc39c}"
    ".m{fill:#435b75}.x{fill:#5b6f85}.l{stroke:#f2837a}.n text{fill:#14171b}.n .F{fill:#fff}}\n"
    "</style>\n";

double smp__svg_grid_step(double span)
{
    const double power = pow(10.0, floor(log10(span / 3.0)));
    const double times = span / 3.0 / power;
    return power * (times >= 5.0 ? 5.0 : times >= 2.0 ? 2.0 : 1.0);
}

void smp__svg_number(smp_text *svg, double value)
{
    char digits[64];
    int length = snprintf(digits, sizeof digits, "%.2f", value);
    while (length > 0 && digits[length - 1] == '0')
        length--;
    if (length > 0 && digits[length - 1] == '.')
        length--;
    smp_text_append_bytes(svg, digits, (size_t)length);
}

void smp__svg_attribute(smp_text *svg, const char *name, double value)
{
    smp_text_append(svg, " %s=\"", name);
    smp__svg_number(svg, value);
    smp_text_append(svg, "\"");
}

void smp__svg_escaped(smp_text *svg, const char *value)
{
    for (; *value; value++) {
        if (*value == '<' || *value == '&')
            smp_text_append(svg, *value == '<' ? "&lt;" : "&amp;");
        else /* XML has no other control characters */
            smp_text_append_bytes(
                svg, (unsigned char)*value >= ' ' || *value == '\t' || *value == '\n' ? value : "?",
                1);
    }
}

void smp__svg_text(smp_text *svg, const char *class, double x, double y, const char *value)
{
    smp_text_append(svg, "<text");
    if (class[0])
        smp_text_append(svg, " class=\"%s\"", class);
    smp__svg_attribute(svg, "x", x);
    smp__svg_attribute(svg, "y", y);
    smp_text_append(svg, ">");
    smp__svg_escaped(svg, value);
    smp_text_append(svg, "</text>\n");
}

void smp__svg_rect(smp_text *svg, const char *class, double x, double y, double w, double h)
{
    smp_text_append(svg, "<rect class=\"%s\"", class);
    smp__svg_attribute(svg, "x", x);
    smp__svg_attribute(svg, "y", y);
    smp__svg_attribute(svg, "width", w);
    smp__svg_attribute(svg, "height", h);
    smp_text_append(svg, "/>\n");
}

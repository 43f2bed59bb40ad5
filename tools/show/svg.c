/* Elements of a figure; see the header. */
#include "tools/show/svg.h"

#include <stdio.h>

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
        else
            smp_text_append_bytes(svg, value, 1);
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

/* Elements of an SVG, appended to its text. Lengths and places are in units of the figure. */
#ifndef SMP_TOOLS_SHOW_SVG_H
#define SMP_TOOLS_SHOW_SVG_H

#include "graph/base/text.h"

/* Two decimals at most, without trailing zeros. */
void smp__svg_number(smp_text *svg, double value);
void smp__svg_attribute(smp_text *svg, const char *name, double value);
void smp__svg_escaped(smp_text *svg, const char *value);
/* class: of a style sheet; "": none. */
void smp__svg_text(smp_text *svg, const char *class, double x, double y, const char *value);
void smp__svg_rect(smp_text *svg, const char *class, double x, double y, double w, double h);

#endif

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
/* Distance of grid lines: 1, 2 or 5 times a power of ten, three to seven of which fill the span. */
double smp__svg_grid_step(double span);
/* A style element: text, ground, grid and the colours of actions, light and dark. */
extern const char smp__svg_style[];

#endif

/* Drawings of a plan: what every rank does when, and how much memory it holds meanwhile.
 *
 * A picture is the plan, simulated, with the bytes alive at every moment, and if wanted the
 * measured timeline of a step beside the predicted one. It is drawn as
 *  - a page (HTML): self-contained, no network; the timeline per rank, memory per rank against its
 *    limit, the stage table, the bound and the gap; zoom, pan, keyboard, light and dark;
 *  - a figure (SVG): the same timeline and memory, static, for documents;
 *  - text: a line per rank, for a terminal.
 * The same plan gives the same bytes. Replicas do the same: one is drawn, of replicas that differ
 * the slowest (smp_simulation). */
#ifndef SMP_TOOLS_SHOW_PICTURE_H
#define SMP_TOOLS_SHOW_PICTURE_H

#include "schedule/plan/plan.h"
#include "schedule/trace/run_record.h"
#include "schedule/trace/trace.h"

typedef struct smp_picture smp_picture;

/* Simulates the plan and lays out its memory. plan and graph are borrowed: they must outlive the
 * picture. SMP_ERR_INPUT if the plan is not one of this graph or has no `cluster:`.
 * *out is freed with smp_picture_close. O(actions log ranks + actions * transfers of a stage). */
smp_status smp_picture_open(const smp_plan *plan, const smp_graph *graph, smp_picture **out);
void smp_picture_close(smp_picture *picture); /* accepts NULL */

/* Events of one measured step, of all ranks or of the replica that is drawn; copied. The page and
 * the figure then show them below the prediction on one time axis, the text as further lines. */
smp_status smp_picture_add_measured(smp_picture *picture, const smp_trace_event *events, int64_t n);

/* What a run tells of all its steps, for the page; borrowed, NULL: nothing. */
void smp_picture_add_run(smp_picture *picture, const smp_run_record *run);

/* Appends HTML of a caller's to what the page has above the timeline; borrowed, NULL: nothing. */
void smp_picture_add_section(smp_picture *picture, const smp_text *html);

/* Appends a whole file. */
smp_status smp_picture_html(const smp_picture *picture, smp_text *html);
smp_status smp_picture_svg(const smp_picture *picture, smp_text *svg);

/* Appends lines of at most `columns` characters (0: 100, at least 60), ASCII only. */
smp_status smp_picture_text(const smp_picture *picture, int columns, smp_text *text);

/* The same of a plan, for --explain: opens a picture, appends its lines, closes it. */
smp_status smp_plan_draw_text(const smp_plan *plan, const smp_graph *graph, int columns,
                              smp_text *text);

#endif

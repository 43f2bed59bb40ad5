/* Plans for other programs: an exporter per format (export_<format>.c), listed in export_kinds.h.
 * `--export FORMAT:FILE` of smp-partition writes one. Each exporter says in its first lines which
 * command takes the file on the other side. */
#ifndef SMP_SCHEDULE_EXPORT_EXPORT_H
#define SMP_SCHEDULE_EXPORT_EXPORT_H

#include "schedule/plan/plan.h"

/* What a plan may say and a format perhaps not. */
typedef enum smp_export_aspect {
    SMP_EXPORT_RECOMPUTE,
    SMP_EXPORT_OFFLOAD, /* stashes in host memory */
    SMP_EXPORT_DDP,
    SMP_EXPORT_TENSOR, /* ops that several devices compute together */
    SMP_EXPORT_GROUPS, /* ... and of which not all stages have as many */
    SMP_EXPORT_SHARDS,
    SMP_EXPORT_PLACEMENT, /* devices in another order than that of ranks and replicas */
    SMP_EXPORT_TIES,      /* weights that several stages share */
    SMP_N_EXPORT_ASPECT
} smp_export_aspect;

typedef struct smp_exporter {
    const char *name;
    const char *summary; /* one line, for --help */
    /* Appends the file; out->failed is the caller's to see. SMP_ERR_INPUT, saying why and what
     * would help, if the format cannot express the plan. The same plan, the same bytes. */
    smp_status (*write)(const smp_plan *plan, const smp_graph *graph, smp_text *out);
    /* What smp_export_file writes beside FILE, to FILE followed by the suffix; or NULL. */
    const struct smp_exporter *beside;
    const char *beside_suffix;
    /* What to do there by hand for what the format does not say; NULL: it says it, or nobody runs
     * it. */
    const char *by_hand[SMP_N_EXPORT_ASPECT];
} smp_exporter;

const smp_exporter *smp_exporter_find(const char *name); /* NULL if unknown */
const smp_exporter *const *smp_exporters(void);          /* NULL-terminated */

/* Splits "FORMAT:FILE" (option: the flag's name, for messages). *path points into `spec`.
 * SMP_ERR_INPUT for an unknown format, naming the nearest one, or without a file. */
smp_status smp_export_parse(const char *option, const char *spec, const smp_exporter **exporter,
                            const char **path);

/* Writes a plan to a file, and what belongs beside it; readers see a whole file or none. */
smp_status smp_export_file(const smp_exporter *exporter, const smp_plan *plan,
                           const smp_graph *graph, const char *path);

/* What the plan says and the format does not, a line each: "torch-csv does not say ...". Appends
 * nothing where all is said. */
smp_status smp_export_notes(const smp_exporter *exporter, const smp_plan *plan,
                            const smp_graph *graph, smp_text *text);

#endif

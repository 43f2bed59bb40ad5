/* The command line of smp-partition: one table of options, from which parsing and --help are
 * made. */
#ifndef SMP_TOOLS_PARTITION_OPTIONS_H
#define SMP_TOOLS_PARTITION_OPTIONS_H

#include "schedule/export/export.h"
#include "schedule/plan/sketch.h"
#include "schedule/planner/search.h"
#include "tools/options/options.h"

enum { SMP_MAX_EXPORTS = 16, SMP_MAX_CUTS = 256, SMP_MAX_SPLITS = 256, SMP_MAX_COUNT = 1 << 20 };

typedef struct smp_partition_options {
    smp_common_options common;
    bool check;                /* `check PLAN` */
    const char *model;         /* NULL in `check` without --model */
    const char *plan;          /* of `check` */
    const char *schedule_from; /* FILE; NULL: none */
    const char *costs;         /* PLAN of `check`; NULL: none */
    const char *split_from;    /* PLAN; NULL: none */
    const char *same_bits_as;  /* likewise */
    const char *fix;           /* --fix PLAN */
    const char *fix_stages;    /* its :STAGES; NULL: all */
    char *fix_text;            /* malloc'ed: holds both */
    const char *output, *cluster, *profile, *trace, *report, *svg;
    const char *cut[SMP_MAX_CUTS]; /* patterns, malloc'ed in cut_text */
    int n_cut;
    char *cut_text[SMP_MAX_CUTS];
    int n_cut_text;
    bool has_tensor, has_tensor_overlap;
    const char *far_tensor;                /* a --placement with T not last; NULL: none */
    int tensor_overlap;                    /* smp_tensor_overlap */
    int tensor;                            /* 0: auto */
    smp_split_entry split[SMP_MAX_SPLITS]; /* their `op` is malloc'ed */
    int n_split;
    smp_freeze_entry freeze[SMP_MAX_FREEZES];
    smp_freezing freezing; /* of `freeze` */
    const smp_exporter *exporter[SMP_MAX_EXPORTS];
    const char *export_path[SMP_MAX_EXPORTS];
    int n_export;
    smp_option_list plugins;
    double time_limit_s; /* 0: none */
    bool has_placement, has_device, has_precision, has_state_precision, has_shard_what;
    smp_target target; /* where these say so */
    bool explain, json, version;
    int help;                   /* smp_option_help */
    smp_search_request request; /* numbers and choices; no graph, cluster, profile */
} smp_partition_options;

/* Fills *out; freed also after a failure. SMP_ERR_INPUT: wrong usage. */
smp_status smp_partition_options_parse(int argc, char **argv, smp_partition_options *out);
/* What to plan for: the options, else what the plan to check or to keep says, else what the
 * profile was measured on, else the CPU in fp32. sketch, profile: may be NULL. SMP_ERR_INPUT if
 * the device lacks the precision. */
smp_status smp_partition_options_target(const smp_partition_options *options,
                                        const smp_sketch *sketch, const smp_profile *profile,
                                        smp_target *out);
void smp_partition_options_free(smp_partition_options *options);

extern const smp_option_table smp__partition_table; /* of smp_partition_options */

#endif

/* The command line of smp-partition: one table of options, from which parsing and --help are
 * made. */
#ifndef SMP_TOOLS_PARTITION_OPTIONS_H
#define SMP_TOOLS_PARTITION_OPTIONS_H

#include "schedule/export/export.h"
#include "smp.h"
#include "tools/options/options.h"

enum { SMP_MAX_EXPORTS = 16 };

typedef struct smp_partition_options {
    smp_common_options common;
    bool check;               /* `check PLAN` */
    bool compare;             /* `compare PLAN...`: the plans are common.operand and what is more */
    smp_options job;          /* model (NULL in `check` without --model), planning, and of runtime
                                 what to plan for */
    const char *plan;         /* of `check` */
    const char *costs;        /* PLAN of `check`; NULL: none */
    const char *same_bits_as; /* likewise */
    char *fix_text;           /* malloc'ed: holds fix and fix_stages */
    const char *output, *trace, *report, *svg, *csv;
    int64_t keep_every;  /* 0: what keeping states costs is not asked */
    const char *events;  /* of an elastic job, whose life is drawn */
    float tokens, price; /* of a training, of a device hour; 0: not given */
    smp_option_list set, split, cut_at, freeze, plugins, sweep;
    const smp_exporter *exporter[SMP_MAX_EXPORTS];
    const char *export_path[SMP_MAX_EXPORTS];
    int n_export;
    bool explain, json;
} smp_partition_options;

/* Fills *out; freed also after a failure. SMP_ERR_INPUT: wrong usage. */
smp_status smp_partition_options_parse(int argc, char **argv, smp_partition_options *out);
bool smp_partition_options_know(const char *key);
/* Is the row one of what is planned for, and of the search, rather than of the program? */
bool smp_partition_options_plan(const smp_option *row);
/* Lists that were given become part of `job`. */
void smp_partition_options_settle(smp_partition_options *options);
/* The planning option `key` of a model, as if --key VALUE had been given; `value` has to live as
 * long as the options. SMP_ERR_INPUT: there is none, or it is not for a sweep. */
smp_status smp_partition_options_set(smp_partition_options *options, const char *key,
                                     const char *value);
/* As if --set NAME=VALUE had been given; the text has to live as long as the options. */
smp_status smp_partition_options_let(smp_partition_options *options, const char *setting);
void smp_partition_options_free(smp_partition_options *options);

extern const smp_option_table smp__partition_table; /* of smp_partition_options */

#endif

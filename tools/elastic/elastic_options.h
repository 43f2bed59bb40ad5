/* The options of smp-run --elastic: those of smp-run, which the ranks get, those of the search for
 * a plan, and the supervisor's own, in one table. */
#ifndef SMP_TOOLS_ELASTIC_ELASTIC_OPTIONS_H
#define SMP_TOOLS_ELASTIC_ELASTIC_OPTIONS_H

#include "tools/elastic/speeds/plan_speeds.h"
#include "tools/partition/partition_options.h"
#include "tools/run/run_options.h"

enum { SMP__ELASTIC_DEVICES = SMP__SPEEDS_MOST };

typedef struct smp__elastic_options {
    smp__run_options run; /* first: common.operand is the model */
    smp_partition_options partition;
    int least, most; /* devices */
    int64_t keep_every;
    const char *keep_in; /* NULL: the default */
    const char *launcher, *events;
    const char *hosts, *agent; /* file; command; NULL: the usual */
    double wait_s, beat_limit_s, horizon_s, keep_for_s;
    int failures_allowed;
    bool ignore_slow;
    smp_option *rows; /* of `table` */
    smp_option_table table;
    smp_arena *arena;
    smp_text passed; /* options of the ranks, "--name=value" each, NUL-terminated one by one */
    int n_passed;
    char *const
        *command; /* [n_command], NULL at the end: a program of the user's and its arguments,
                             in place of smp-run as ranks */
    int n_command;
    smp_text planning; /* the model, and options of the search, as they were given */
} smp__elastic_options;

/* Those of the command line. To be freed in any case; does not print. SMP_ERR_INPUT with the
 * option. */
smp_status smp__elastic_options_read(int argc, char **argv, smp__elastic_options *out);
void smp__elastic_options_free(smp__elastic_options *options);

#endif

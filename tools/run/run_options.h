/* The options of smp-run: a table of them, and the help. */
#ifndef SMP_TOOLS_RUN_RUN_OPTIONS_H
#define SMP_TOOLS_RUN_RUN_OPTIONS_H

#include "tools/run/training_loop.h"
#include "graph/base/arena.h"
#include "graph/base/text.h"
#include "tools/options/options.h"

typedef struct smp__run_options {
    smp_common_options common;
    smp_train_options train;
    smp_option_list data, eval_data, predict_data, plugins, weights_like;
    const char *names, *weights_map, *export_size;
    smp_option_list weights_only;
    smp_text told;    /* "option NAME VALUE" lines: train.told */
    smp_arena *arena; /* of values from a receipt */
    bool elastic;     /* a supervisor starts the ranks: tools/elastic/ */
} smp__run_options;

/* Those of the command line. Strings are argv's. SMP_ERR_INPUT with the option. */
smp_status smp__run_options_read(int argc, char **argv, smp__run_options *out);
/* The same in two parts, for a table that has other options, too: what stands where nothing is
 * given; and what is made of what was read, with the plan (or model) as the operand. */
void smp__run_options_begin(smp__run_options *out);
smp_status smp__run_options_check(smp__run_options *options);
/* What the command line leaves out of training is as the receipt of the run that is resumed says
 * (exec/job/receipt.h). changed: a line for each option of which the two say different things. */
smp_status smp__run_options_settle(smp__run_options *options, const char *receipt,
                                   smp_text *changed);
void smp__run_options_free(smp__run_options *options);
extern const smp_option_table smp__run_table; /* of smp__run_options */

#endif

/* What is made of a plan besides its file: timelines, pictures, exports. */
#ifndef SMP_TOOLS_PARTITION_OUTPUTS_H
#define SMP_TOOLS_PARTITION_OUTPUTS_H

#include "tools/partition/partition_options.h"

/* Writes --trace, --report, --svg and --export as far as they were given. Each file is whole or not
 * there. */
smp_status smp_write_outputs(const smp_partition_options *options, const smp_plan *plan,
                             const smp_graph *graph);

/* To standard output. */
smp_status smp_print_text(const smp_text *text);

#endif

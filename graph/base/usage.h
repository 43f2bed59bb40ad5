/* Command-line errors that the programs share. */
#ifndef SMP_GRAPH_BASE_USAGE_H
#define SMP_GRAPH_BASE_USAGE_H

#include <getopt.h>
#include <stdbool.h>

#include "graph/base/status.h"

/* SMP_ERR_INPUT for an option that getopt_long refused: `given` as typed, its value missing or the
 * option unknown; then the nearest of `options` (ended by a NULL name) is named. */
smp_status smp_usage_bad_option(const char *given, bool no_value, const struct option *options);

#endif

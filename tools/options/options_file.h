/* A file of options (--config): a YAML map, `smp: 1`, whose keys are names of a table's rows. */
#ifndef SMP_TOOLS_OPTIONS_OPTIONS_FILE_H
#define SMP_TOOLS_OPTIONS_OPTIONS_FILE_H

#include "tools/options/options.h"

/* One value for a row. name: "job.yaml:3:1: lr", gone after the call; text: NULL where the option
 * is given without a value, else it lives as long as the file. */
typedef smp_status smp__option_taker(void *context, const smp_option *row, const char *name,
                                     const char *text);

/* Reads the file of asked->config, hands its values to `take` in their order and sets the operand.
 * given: [rows of the table, headings too] those of the command line, which are passed over.
 * SMP_ERR_INPUT with the place. */
smp_status smp__options_file_read(const smp_option_table *table, const bool *given,
                                  smp__option_taker *take, void *context,
                                  smp_common_options *asked);

#endif

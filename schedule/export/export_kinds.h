/* The list of exporters. A new one: a file export_<format>.c that defines smp__export_<name>, and
 * its name here; the table, --help, messages and tests follow. */
#ifndef SMP_SCHEDULE_EXPORT_EXPORT_KINDS_H
#define SMP_SCHEDULE_EXPORT_EXPORT_KINDS_H

#include "schedule/export/export.h"

/* In the order of --help. */
#define SMP__EXPORTERS(X)                                                                          \
    X(torch_csv)                                                                                   \
    X(torch_stages)                                                                                \
    X(torchtitan)                                                                                  \
    X(megatron)                                                                                    \
    X(deepspeed)                                                                                   \
    X(dot)                                                                                         \
    X(json)

#define SMP__EXPORTER_DECLARE(name) extern const smp_exporter smp__export_##name;
SMP__EXPORTERS(SMP__EXPORTER_DECLARE)
#undef SMP__EXPORTER_DECLARE

#endif

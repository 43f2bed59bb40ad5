/* Where nothing fits: what would. */
#ifndef SMP_SCHEDULE_PLANNER_ADVICE_ADVICE_H
#define SMP_SCHEDULE_PLANNER_ADVICE_ADVICE_H

#include "schedule/planner/search/search.h"

/* Adds to the recorded SMP_ERR_NO_FIT what would make the request fit: single changes of it, each
 * planned before it is named (advice.c). Returns SMP_ERR_NO_FIT, unless that
 * fails. */
smp_status smp__plan_advise(const smp_search_request *request, const smp__nearest *nearest);
/* The least size not below `bytes` that can be printed, as smp_format_bytes prints it in the
 * buffer. */
int64_t smp__printed_bytes(char *buffer, size_t size, int64_t bytes);

#endif

/* The check of a plan, as smp-partition prints it. */
#ifndef SMP_TOOLS_SHOW_CHECK_REPORT_H
#define SMP_TOOLS_SHOW_CHECK_REPORT_H

#include "schedule/check/check.h"

/* As text: table, scores, findings; and as one JSON object. request: the one that was checked. */
smp_status smp_check_report(const smp_check *check, const smp_search_request *request,
                            smp_text *text);
smp_status smp_check_report_json(const smp_check *check, const smp_search_request *request,
                                 smp_text *json);

#endif

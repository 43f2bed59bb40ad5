/* json: the plan as one JSON object, with the keys of the plan file (schedule/plan/FORMAT.md)
 * and the same numbers. For anything that reads JSON:
 *
 *     jq -r '.stages[] | "\(.stage) \(.rank) \(.ops | join(" "))"' FILE
 *
 * Linear in the plan. */
#include "schedule/export/export_kinds.h"

static smp_status write(const smp_plan *plan, const smp_graph *graph, smp_text *out)
{
    (void)graph;
    return smp_plan_format_json(plan, out);
}

const smp_exporter smp__export_json = {
    .name = "json",
    .summary = "the plan as one JSON object",
    .write = write,
};

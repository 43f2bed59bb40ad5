/* Keys of plan files; see the header. */
#include "schedule/plan/plan_field.h"

#include <string.h>

smp_status smp__field_placement(const smp_yaml_node *parallel, smp_placement *out)
{
    const smp_yaml_node *node;
    const char *text;
    SMP_TRY(smp__field(parallel, "parallel", "placement", &node));
    SMP_TRY(smp_yaml_string(node, "parallel: placement", &text));
    if (strcmp(text, "cluster") != 0 && strcmp(text, "spread") != 0)
        return smp_fail_at(smp_yaml_where(node),
                           "parallel: placement: got '%s', expected cluster or spread", text);
    *out = text[0] == 'c' ? SMP_PLACEMENT_CLUSTER : SMP_PLACEMENT_SPREAD;
    return SMP_OK;
}

smp_status smp__plan_read_target(const smp_yaml_node *top, smp_target *out)
{
    static const char *const keys[] = {"device", "precision"};
    const smp_yaml_node *map, *node;
    const char *text;
    smp_target target;
    if (!smp_yaml_get(top, "execution"))
        return SMP_OK;
    SMP_TRY(smp__field_map(top, "plan", "execution", keys, SMP__COUNT(keys), &map));
    SMP_TRY(smp__field(map, "execution", "device", &node));
    SMP_TRY(smp_yaml_string(node, "execution: device", &text));
    SMP_TRY(smp_backend_read(smp_yaml_where(node), "execution: device", text, &target.backend));
    SMP_TRY(smp__field(map, "execution", "precision", &node));
    SMP_TRY(smp_yaml_string(node, "execution: precision", &text));
    SMP_TRY(
        smp_precision_read(smp_yaml_where(node), "execution: precision", text, &target.precision));
    if (smp_target_check(target) != SMP_OK)
        return smp_fail_at(smp_yaml_where(node),
                           "execution: precision: got %s, expected fp32, which alone the CPU has",
                           text);
    *out = target;
    return SMP_OK;
}

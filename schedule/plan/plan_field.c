/* Keys of plan files; see the header. */
#include "schedule/plan/plan_field.h"

#include <string.h>

/* Every device once. */
static smp_status read_devices(const smp_yaml_node *list, smp_arena *arena, const int **out)
{
    const char *what = "parallel: placement";
    int32_t n = smp_yaml_list_size(list);
    int *device = SMP_ARENA_NEW(arena, int, (size_t)n);
    bool *taken = SMP_ARENA_NEW(arena, bool, (size_t)n);
    if (!device || !taken)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n; i++) {
        const smp_yaml_node *node = smp_yaml_list_at(list, i);
        int64_t value;
        SMP_TRY(smp_yaml_int(node, what, 0, n - 1, &value));
        if (taken[value])
            return smp_fail_at(smp_yaml_where(node), "%s: device %lld stands there twice", what,
                               (long long)value);
        taken[value] = true;
        device[i] = (int)value;
    }
    *out = device;
    return SMP_OK;
}

smp_status smp__field_placement(const smp_yaml_node *parallel, int pipeline, int ddp,
                                smp_arena *arena, smp_placement *out, const int **listed)
{
    const smp_yaml_node *node;
    const char *text;
    SMP_TRY(smp__field(parallel, "parallel", "placement", &node));
    if (smp_yaml_kind_of(node) == SMP_YAML_LIST) {
        if (pipeline == 0 || ddp == 0) /* of a sketch */
            return smp_fail_at(smp_yaml_where(node),
                               "parallel: placement: got a list of %d devices, expected a multiple "
                               "of `pipeline`, which has to stand beside it",
                               smp_yaml_list_size(node));
        if ((int64_t)pipeline * ddp != smp_yaml_list_size(node))
            return smp_fail_at(smp_yaml_where(node),
                               "parallel: placement: got a list of %d devices, expected one for "
                               "each of %d replicas (`ddp`) of %d ranks (`pipeline`)",
                               smp_yaml_list_size(node), ddp, pipeline);
        SMP_TRY(read_devices(node, arena, listed));
        *out = smp_placement_of(*listed, pipeline, ddp);
        if (*out != SMP_PLACEMENT_LISTED)
            *listed = NULL;
        return SMP_OK;
    }
    SMP_TRY(smp_yaml_string(node, "parallel: placement", &text));
    if (strcmp(text, "cluster") != 0 && strcmp(text, "spread") != 0)
        return smp_fail_at(smp_yaml_where(node),
                           "parallel: placement: got '%s', expected cluster, spread or a list of "
                           "devices",
                           text);
    *out = text[0] == 'c' ? SMP_PLACEMENT_CLUSTER : SMP_PLACEMENT_SPREAD;
    return SMP_OK;
}

smp_status smp__plan_read_target(const smp_yaml_node *top, smp_target *out, int64_t *library_bytes)
{
    static const char *const keys[] = {"device", "precision", "state_precision", "libraries"};
    const smp_yaml_node *map, *node;
    const char *text;
    smp_target target = {0};
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
    SMP_TRY(smp__field_bf16(map, "execution", "state_precision", &target.bf16_states));
    if (smp_yaml_get(map, "libraries"))
        SMP_TRY(smp__field_int64(map, "execution", "libraries", 0, SMP_MAX_BYTES, library_bytes));
    if (smp_target_check(target) != SMP_OK)
        return smp_fail_at(
            smp_yaml_where(node),
            "execution: precision: got %s, expected fp32, bf16, fp16 or fp8, which the %s has",
            text, smp_backend_of(target)->title);
    *out = target;
    return SMP_OK;
}

smp_status smp__plan_read_split(const smp_yaml_node *top, const char *file, smp_arena *arena,
                                smp_splitting *splitting)
{
    static const char *const keys[] = {"op", "as"};
    const char *what = "split";
    const smp_yaml_node *list = smp_yaml_get(top, what);
    if (!list)
        return SMP_OK;
    SMP_TRY(smp_yaml_list(list, what));
    const int32_t n = smp_yaml_list_size(list);
    if (n > 0 && splitting->devices <= 1)
        return smp_fail_at(smp_yaml_where(list),
                           "split: got %d op%s, expected `parallel: {tensor: T}` that says over "
                           "how many devices",
                           n, n == 1 ? "" : "s");
    smp_split_entry *entry = SMP_ARENA_NEW(arena, smp_split_entry, (size_t)n);
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n; i++) {
        const smp_yaml_node *map = smp_yaml_list_at(list, i);
        SMP_TRY(smp_yaml_map(map, what));
        SMP_TRY(smp_yaml_known_keys(map, what, keys, SMP__COUNT(keys)));
        SMP_TRY(smp__field_text(map, what, "op", arena, &entry[i].op));
        SMP_TRY(smp__field_text(map, what, "as", arena, &entry[i].as));
        entry[i].where = smp_yaml_where(map);
        entry[i].where.file = file;
    }
    splitting->entry = entry;
    splitting->n_entry = n;
    return SMP_OK;
}

/* Keys of plan files; see the header. */
#include "schedule/plan/plan_field.h"

#include <stdio.h>
#include <string.h>

smp_status smp__field(const smp_yaml_node *map, const char *what, const char *key,
                      const smp_yaml_node **out)
{
    *out = smp_yaml_get(map, key);
    if (!*out)
        return smp_fail_at(smp_yaml_where(map), "%s: key '%s' is missing", what, key);
    return SMP_OK;
}

smp_status smp__field_map(const smp_yaml_node *map, const char *what, const char *key,
                          const char *const *keys, size_t n_key, const smp_yaml_node **out)
{
    SMP_TRY(smp__field(map, what, key, out));
    SMP_TRY(smp_yaml_map(*out, key));
    return smp_yaml_known_keys(*out, key, keys, n_key);
}

smp_status smp__field_list(const smp_yaml_node *map, const char *what, const char *key,
                           const smp_yaml_node **out)
{
    SMP_TRY(smp__field(map, what, key, out));
    return smp_yaml_list(*out, key);
}

smp_status smp__field_int64(const smp_yaml_node *map, const char *what, const char *key,
                            int64_t min, int64_t max, int64_t *out)
{
    const smp_yaml_node *node;
    char name[64];
    SMP_TRY(smp__field(map, what, key, &node));
    snprintf(name, sizeof name, "%s: %s", what, key);
    return smp_yaml_int(node, name, min, max, out);
}

smp_status smp__field_int(const smp_yaml_node *map, const char *what, const char *key, int min,
                          int max, int *out)
{
    int64_t value;
    SMP_TRY(smp__field_int64(map, what, key, min, max, &value));
    *out = (int)value;
    return SMP_OK;
}

smp_status smp__field_double(const smp_yaml_node *map, const char *what, const char *key,
                             double min, double max, double *out)
{
    const smp_yaml_node *node;
    char name[64];
    SMP_TRY(smp__field(map, what, key, &node));
    snprintf(name, sizeof name, "%s: %s", what, key);
    return smp_yaml_double(node, name, min, max, out);
}

smp_status smp__copy_text(const smp_yaml_node *node, const char *what, smp_arena *arena,
                          const char **out)
{
    const char *text;
    SMP_TRY(smp_yaml_string(node, what, &text));
    if (!*text)
        return smp_fail_at(smp_yaml_where(node), "%s: got an empty string", what);
    *out = smp_arena_strdup(arena, text);
    return *out ? SMP_OK : SMP_ERR_NO_MEMORY;
}

smp_status smp__field_text(const smp_yaml_node *map, const char *what, const char *key,
                           smp_arena *arena, const char **out)
{
    const smp_yaml_node *node;
    char name[64];
    SMP_TRY(smp__field(map, what, key, &node));
    snprintf(name, sizeof name, "%s: %s", what, key);
    return smp__copy_text(node, name, arena, out);
}

smp_status smp__field_fingerprint(const smp_yaml_node *model, uint64_t *out)
{
    enum { DIGITS = 16 };
    const smp_yaml_node *node;
    const char *text;
    SMP_TRY(smp__field(model, "model", "fingerprint", &node));
    SMP_TRY(smp_yaml_string(node, "model: fingerprint", &text));
    if (strlen(text) != DIGITS || strspn(text, "0123456789abcdef") != DIGITS)
        return smp_fail_at(smp_yaml_where(node),
                           "model: fingerprint: got '%s', expected %d hexadecimal digits", text,
                           DIGITS);
    *out = 0;
    for (const char *c = text; *c; c++)
        *out = *out << 4 | (uint64_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
    return SMP_OK;
}

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
    if (!smp_backend_find(text, &target.backend))
        return smp_fail_at(smp_yaml_where(node),
                           "execution: device: got '%s', expected cpu or cuda", text);
    SMP_TRY(smp__field(map, "execution", "precision", &node));
    SMP_TRY(smp_yaml_string(node, "execution: precision", &text));
    if (!smp_precision_find(text, &target.precision))
        return smp_fail_at(smp_yaml_where(node),
                           "execution: precision: got '%s', expected fp32, tf32 or bf16", text);
    if (smp_target_check(target) != SMP_OK)
        return smp_fail_at(smp_yaml_where(node),
                           "execution: precision: got %s, expected fp32, which alone the CPU has",
                           text);
    *out = target;
    return SMP_OK;
}

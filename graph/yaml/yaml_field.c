/* Keys of maps; see the header. */
#include "graph/yaml/yaml_field.h"

#include <stdio.h>
#include <string.h>

#include "graph/base/text.h"

enum { NAME_BYTES = 512 }; /* names of operators are in it */

smp_status smp__field(const smp_yaml_node *map, const char *what, const char *key,
                      const smp_yaml_node **out)
{
    *out = smp_yaml_get(map, key);
    if (!*out)
        return smp_fail_at(smp_yaml_where(map), "%s: key '%s' is missing", what, key);
    return SMP_OK;
}

/* The same, and what messages call its value. */
static smp_status find(const smp_yaml_node *map, const char *what, const char *key,
                       char name[NAME_BYTES], const smp_yaml_node **out)
{
    snprintf(name, NAME_BYTES, "%s: %s", what, key);
    return smp__field(map, what, key, out);
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
    char name[NAME_BYTES];
    SMP_TRY(find(map, what, key, name, &node));
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
    char name[NAME_BYTES];
    SMP_TRY(find(map, what, key, name, &node));
    return smp_yaml_double(node, name, min, max, out);
}

smp_status smp__field_us(const smp_yaml_node *map, const char *what, const char *key, double *out)
{
    const smp_yaml_node *node;
    char name[NAME_BYTES];
    SMP_TRY(find(map, what, key, name, &node));
    return smp_yaml_us(node, name, out);
}

smp_status smp__field_rate(const smp_yaml_node *map, const char *what, const char *key,
                           bool or_none, double *out)
{
    const smp_yaml_node *node;
    char name[NAME_BYTES];
    SMP_TRY(find(map, what, key, name, &node));
    return smp_yaml_rate(node, name, or_none, out);
}

smp_status smp__field_bytes(const smp_yaml_node *map, const char *what, const char *key,
                            int64_t *out)
{
    const smp_yaml_node *node;
    char name[NAME_BYTES];
    SMP_TRY(find(map, what, key, name, &node));
    return smp_yaml_bytes(node, name, out);
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
    char name[NAME_BYTES];
    SMP_TRY(find(map, what, key, name, &node));
    return smp__copy_text(node, name, arena, out);
}

smp_status smp__field_bf16(const smp_yaml_node *map, const char *what, const char *key, bool *out)
{
    static const char *const formats[] = {"fp32", "bf16"};
    const smp_yaml_node *node = smp_yaml_get(map, key);
    char name[NAME_BYTES];
    const char *text;
    if (!node)
        return SMP_OK;
    snprintf(name, sizeof name, "%s: %s", what, key);
    SMP_TRY(smp_yaml_string(node, name, &text));
    for (int i = 0; i < 2; i++)
        if (strcmp(text, formats[i]) == 0) {
            *out = i == 1;
            return SMP_OK;
        }
    return smp_fail_choice(smp_yaml_where(node), name, text, formats, 2);
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

/* What the options of smp-partition are given; see the header. */
#include "tools/partition/partition_values.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/usage.h"
#include "graph/yaml/yaml.h"
#include "tools/partition/partition_options.h"

smp_status smp__parse_count(const char *option, const char *text, bool automatic, int *out)
{
    int64_t value = 0;
    if (automatic && strcmp(text, "auto") == 0) {
        *out = 0;
        return SMP_OK;
    }
    if (!smp_parse_int(text, &value) || value < 1 || value > SMP_MAX_COUNT)
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected a whole number from 1 to %d%s",
                        option, text, SMP_MAX_COUNT, automatic ? ", or auto" : "");
    *out = (int)value;
    return SMP_OK;
}

smp_status smp__parse_choice(const char *option, const char *words, const char *text, int *out)
{
    smp_text known = {0};
    const char *meant = smp_precision_word(text);
    size_t length = strlen(meant);
    int i = 0;
    for (const char *word = words; *word; i++) {
        size_t n = strcspn(word, "|");
        bool last = !word[n];
        if (n == length && strncmp(word, meant, n) == 0) {
            *out = i;
            smp_text_free(&known);
            return SMP_OK;
        }
        smp_text_append(&known, "%s%.*s", i == 0 ? "" : last ? " or " : ", ", (int)n, word);
        word += n + !last;
    }
    smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected %s", option, text,
             known.data ? known.data : "");
    smp_text_free(&known);
    return SMP_ERR_INPUT;
}

smp_status smp__parse_placement(const char *option, const char *words, const char *text, int *out,
                                bool *far)
{
    const char *d = strchr(text, 'D'), *p = strchr(text, 'P'), *t = strchr(text, 'T');
    const bool letters = strlen(text) == 3 && d && p && t;
    *far = letters && t[1] != '\0';
    if (!letters)
        return smp__parse_choice(option, words, text, out);
    *out = p > d ? 0 : 1;
    return SMP_OK;
}

smp_status smp__parse_schedule(const char *option, const char *text, const char **out)
{
    *out = NULL;
    const smp_schedule_kind *kind = smp_schedule_find(text);
    if (!kind)
        return smp_schedule_fail_name(option, text);
    *out = kind != &smp__schedule_auto ? kind->name : NULL; /* NULL: what is best */
    return SMP_OK;
}

smp_status smp__parse_partitioner(const char *option, const char *text, const char **out)
{
    *out = strcmp(text, "auto") == 0 ? NULL : text;
    return smp_partitioner_check(option, *out);
}

smp_status smp__parse_memory(const char *option, const char *text, int64_t *out)
{
    if (!smp_parse_bytes(text, out) || *out < 1 || *out > SMP_MAX_BYTES)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got '%s', expected a size such as 80GB or 512MiB, up to 1024PiB",
                        option, text);
    return SMP_OK;
}

smp_status smp__parse_prefetch(const char *option, const char *text, int *out)
{
    *out = strcmp(text, "0") == 0 ? 0 : SMP_PREFETCH_AUTO;
    if (*out == 0 || strcmp(text, "auto") == 0)
        return SMP_OK;
    return smp__parse_count(option, text, false, out);
}

smp_status smp__parse_hops(const char *option, const char *text, int *out)
{
    *out = strcmp(text, "auto") == 0 ? SMP_HOPS_AUTO : 0;
    if (*out < 0 || strcmp(text, "none") == 0)
        return SMP_OK;
    return smp__parse_count(option, text, false, out);
}

smp_status smp__parse_bucket(const char *option, const char *text, int64_t *out)
{
    *out = strcmp(text, "auto") == 0 ? SMP_BUCKET_AUTO : 0;
    return *out < 0 || strcmp(text, "none") == 0 ? SMP_OK : smp__parse_memory(option, text, out);
}

smp_status smp__parse_seed(const char *option, const char *text, uint64_t *out)
{
    int64_t value;
    if (!smp_parse_int(text, &value) || value < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected a whole number of 0 or more", option,
                        text);
    *out = (uint64_t)value;
    return SMP_OK;
}

smp_status smp__parse_time_limit(const char *option, const char *text, double *out)
{
    *out = 0;
    if (strcmp(text, "none") == 0)
        return SMP_OK;
    if (!smp_parse_double(text, out) || !(*out > 0) || *out > 1e9)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got '%s', expected seconds above 0 and up to 1e9, or none", option,
                        text);
    return SMP_OK;
}

/* The record of an elastic job; see the header. */
#include "tools/elastic/elastic_record.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "graph/base/clock.h"
#include "graph/yaml/yaml_field.h"
#include "profile/device/cluster.h"

enum { PATH_BYTES = 4096 };

static smp_status path_of(const char *folder, char path[PATH_BYTES])
{
    return snprintf(path, PATH_BYTES, "%s/elastic.yaml", folder) < PATH_BYTES
               ? SMP_OK
               : smp_fail(SMP_ERR_INPUT, "%s: the name is too long", folder);
}

static smp_status begin(smp__record *out)
{
    uint64_t number;
    *out = (smp__record){.incarnation = 0};
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return smp_fail(SMP_ERR_FAILED, "no random number: %s", strerror(errno));
    snprintf(out->job, sizeof out->job, "%016" PRIx64, number);
    return SMP_OK;
}

static smp_status read_left_out(const smp_yaml_node *list, smp__slots *slots)
{
    SMP_TRY(smp_yaml_list(list, "left_out"));
    for (int i = 0; i < smp_yaml_list_size(list); i++) {
        const char *name = "";
        SMP_TRY(smp_yaml_string(smp_yaml_list_at(list, i), "left_out", &name));
        const int slot = smp__slot_find(slots, name); /* -1: its host is no longer named */
        if (slot >= 0)
            slots->slot[slot].left_out = true;
    }
    return SMP_OK;
}

/* Since when is not known: from now on. */
static smp_status read_slow(const smp_yaml_node *list, smp__slots *slots)
{
    static const char *const keys[] = {"device", "speed", "times"};
    SMP_TRY(smp_yaml_list(list, "slow"));
    for (int i = 0; i < smp_yaml_list_size(list); i++) {
        const smp_yaml_node *map = smp_yaml_list_at(list, i), *device;
        const char *name = "";
        double speed;
        int times;
        SMP_TRY(smp_yaml_map(map, "slow"));
        SMP_TRY(smp_yaml_known_keys(map, "slow", keys, sizeof keys / sizeof keys[0]));
        SMP_TRY(smp__field(map, "slow", "device", &device));
        SMP_TRY(smp_yaml_string(device, "slow: device", &name));
        SMP_TRY(smp__field_double(map, "slow", "speed", SMP_LEAST_SPEED, 1.0, &speed));
        SMP_TRY(smp__field_int(map, "slow", "times", 0, INT_MAX / 2, &times));
        const int slot = smp__slot_find(slots, name);
        if (slot < 0)
            continue;
        slots->slot[slot].speed = slots->slot[slot].told_speed = speed < 1.0 ? speed : 0.0;
        slots->slot[slot].times_slow = times;
        slots->slot[slot].slow_s = smp_clock_s();
    }
    return SMP_OK;
}

static smp_status read_number(const smp_yaml_node *top, const char *key, int64_t *out)
{
    const smp_yaml_node *node = smp_yaml_get(top, key);
    return node ? smp_yaml_int(node, key, 0, INT64_MAX / 2, out)
                : smp_fail_at(smp_yaml_where(top), "%s is missing", key);
}

static smp_status read_fields(const smp_yaml_node *top, const char *planned_for, smp__record *out,
                              smp__slots *slots)
{
    static const char *const known[] = {"smp",      "job",     "planned_for", "incarnation",
                                        "plan",     "rows",    "devices",     "left_out",
                                        "failures", "changes", "steps_lost",  "slow"};
    const char *job = "", *planned = "";
    int64_t incarnation = 0, failures = 0, changes = 0;
    SMP_TRY(smp_yaml_known_keys(top, "record", known, sizeof known / sizeof known[0]));
    if (smp_yaml_get(top, "job"))
        SMP_TRY(smp_yaml_string(smp_yaml_get(top, "job"), "job", &job));
    if (smp_yaml_get(top, "planned_for"))
        SMP_TRY(smp_yaml_string(smp_yaml_get(top, "planned_for"), "planned_for", &planned));
    if (strlen(job) != 16)
        return smp_fail_at(smp_yaml_where(top), "job: got '%s', expected 16 digits", job);
    if (strcmp(planned, planned_for) != 0)
        return smp_fail_at(smp_yaml_where(top),
                           "the job was planned for '%s', now it is '%s': give the same model and "
                           "options of planning, or remove this file to plan anew",
                           planned, planned_for);
    SMP_TRY(read_number(top, "incarnation", &incarnation));
    SMP_TRY(read_number(top, "rows", &out->rows));
    SMP_TRY(read_number(top, "failures", &failures));
    SMP_TRY(read_number(top, "changes", &changes));
    SMP_TRY(read_number(top, "steps_lost", &out->steps_lost));
    snprintf(out->job, sizeof out->job, "%s", job);
    out->incarnation = (int)incarnation;
    out->failures = (int)failures;
    out->changes = (int)changes;
    const smp_yaml_node *left_out = smp_yaml_get(top, "left_out");
    const smp_yaml_node *slow = smp_yaml_get(top, "slow");
    if (slow)
        SMP_TRY(read_slow(slow, slots));
    return left_out ? read_left_out(left_out, slots) : SMP_OK;
}

smp_status smp__record_read(const char *folder, const char *planned_for, smp__record *out,
                            smp__slots *slots, bool *found)
{
    char path[PATH_BYTES];
    smp_yaml *yaml = NULL;
    const smp_yaml_node *top;
    SMP_TRY(path_of(folder, path));
    SMP_TRY(begin(out));
    *found = access(path, F_OK) == 0;
    if (!*found)
        return SMP_OK;
    smp_status status = smp_yaml_read(path, &yaml);
    if (status == SMP_OK)
        status = smp_yaml_top(yaml, &top);
    if (status == SMP_OK)
        status = read_fields(top, planned_for, out, slots);
    smp_yaml_destroy(yaml);
    return status;
}

/* Devices that were found slow; of others of speed 1 how often, for the pauses. */
static void put_slow(smp_text *text, const smp__slots *slots)
{
    char name[SMP__SLOT_NAME];
    const char *between = "";
    smp_text_append(text, "slow: [");
    for (int i = 0; i < slots->n; i++) {
        const smp__slot *at = &slots->slot[i];
        if (at->times_slow == 0)
            continue;
        smp_text_append(text, "%s{device: \"%s\", speed: %.2f, times: %d}", between,
                        smp__slot_name(slots, i, name), at->speed > 0.0 ? at->speed : 1.0,
                        at->times_slow);
        between = ", ";
    }
    smp_text_append(text, "]\n");
}

smp_status smp__record_write(const char *folder, const char *planned_for, const smp__record *r,
                             const smp__slots *slots, const int *picked, int n)
{
    char path[PATH_BYTES], name[SMP__SLOT_NAME];
    smp_text text = {0};
    SMP_TRY(path_of(folder, path));
    smp_text_append(&text, "smp: 1\njob: \"%s\"\nplanned_for: ", r->job);
    smp_text_append_quoted(&text, planned_for);
    smp_text_append(&text, "\nincarnation: %d\nplan: plan-%d.yaml\ndevices: [", r->incarnation,
                    r->incarnation);
    for (int i = 0; i < n; i++)
        smp_text_append(&text, "%s\"%s\"", i > 0 ? ", " : "",
                        smp__slot_name(slots, picked[i], name));
    smp_text_append(&text, "]\nleft_out: [");
    const char *between = "";
    for (int i = 0; i < slots->n; i++)
        if (slots->slot[i].left_out) {
            smp_text_append(&text, "%s\"%s\"", between, smp__slot_name(slots, i, name));
            between = ", ";
        }
    smp_text_append(&text,
                    "]\nrows: %" PRId64 "\nfailures: %d\nchanges: %d\nsteps_lost: %" PRId64 "\n",
                    r->rows, r->failures, r->changes, r->steps_lost);
    put_slow(&text, slots);
    const smp_status status =
        text.failed ? smp_fail_memory(text.capacity) : smp_file_write(path, text.data, text.length);
    smp_text_free(&text);
    return status;
}

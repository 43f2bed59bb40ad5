/* Splittings of plans and checkpoints; see the header. */
#include "exec/start/split_from.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "exec/checkpoint/checkpoint_folder.h"
#include "graph/base/text.h"
#include "schedule/plan/split_patterns.h"

enum { MOST_DEVICES = 1 << 20 };

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool is_checkpoint(const char *path)
{
    const char *dot = strrchr(path, '.');
    return is_directory(path) || (dot && strcmp(dot, ".smp") == 0);
}

static smp_status read_receipt(const char *path, char receipt[SMP__RECEIPT_BYTES])
{
    bool found = false;
    if (!is_directory(path))
        return smp__checkpoint_receipt(path, receipt);
    SMP_TRY(smp__checkpoint_find_receipt(path, false, &found, receipt));
    return found ? SMP_OK : smp_fail(SMP_ERR_INPUT, "--split-from: %s holds no checkpoint", path);
}

static smp_status add_entry(const char *text, int length, smp_arena *arena, smp_split_entry *entry)
{
    char *op = smp_arena_printf(arena, "%.*s", length, text);
    char *colon = op ? strrchr(op, ':') : NULL;
    if (!op)
        return SMP_ERR_NO_MEMORY;
    if (!colon)
        return smp_fail(SMP_ERR_INPUT, "--split-from: the checkpoint's receipt is damaged");
    *colon = '\0';
    *entry = (smp_split_entry){.op = op, .as = colon + 1, .where = {"--split-from", 0, 0}};
    return SMP_OK;
}

/* Lines of a receipt: "tensor 2", "split h*.mlp.fc:columns". */
static smp_status read_lines(const char *receipt, smp__split_from *out)
{
    smp_split_entry *entry = SMP_ARENA_NEW(out->arena, smp_split_entry, SMP__RECEIPT_BYTES);
    size_t length;
    int32_t n = 0;
    const char *tensor = smp__receipt_value(receipt, "tensor", &length);
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    const long devices = tensor ? strtol(tensor, NULL, 10) : 0; /* ends at the line's end */
    out->splitting.devices = devices > 0 && devices <= MOST_DEVICES ? (int)devices : 0;
    for (const char *at = receipt; (at = smp__receipt_value(at, "split", &length)); at += length)
        SMP_TRY(add_entry(at, (int)length, out->arena, &entry[n++]));
    out->splitting.entry = entry;
    out->splitting.n_entry = n;
    return SMP_OK;
}

static smp_status read_checkpoint(const char *path, smp__split_from *out)
{
    char receipt[SMP__RECEIPT_BYTES] = "";
    SMP_TRY(read_receipt(path, receipt));
    if (!(out->arena = smp_arena_create()))
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(read_lines(receipt, out));
    if (receipt[0] == '\0' || (out->splitting.devices > 1 && out->splitting.n_entry == 0))
        return smp_fail(SMP_ERR_INPUT,
                        "--split-from: %s does not say how ops are split: give the plan of the job "
                        "that wrote it",
                        path);
    return SMP_OK;
}

smp_status smp__split_from_open(const char *path, smp__split_from *out)
{
    *out = (smp__split_from){0};
    if (is_checkpoint(path)) {
        SMP_TRY(read_checkpoint(path, out));
    } else {
        SMP_TRY(smp_sketch_read(path, &out->sketch));
        out->splitting = out->sketch->splitting;
        if (out->sketch->groups_differ)
            return smp_fail_at(out->sketch->stages_where,
                               "--split-from: a stage has a group of its own (`tensor`), which "
                               "goes with the stages: give --fix");
    }
    if (out->splitting.devices <= 1)
        return smp_fail(SMP_ERR_INPUT, "--split-from: %s splits nothing", path);
    return SMP_OK;
}

void smp__split_from_close(smp__split_from *from)
{
    smp_sketch_destroy(from->sketch);
    smp_arena_destroy(from->arena);
}

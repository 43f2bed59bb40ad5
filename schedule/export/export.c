/* The table of exporters (export_kinds.h), and `FORMAT:FILE`. */
#include "schedule/export/export.h"

#include <string.h>

#include "schedule/export/export_kinds.h"

#define ENTRY(name) &smp__export_##name,
static const smp_exporter *const exporters[] = {SMP__EXPORTERS(ENTRY) NULL};
#undef ENTRY

enum { N_EXPORTER = sizeof exporters / sizeof exporters[0] - 1 };

const smp_exporter *const *smp_exporters(void)
{
    return exporters;
}

const smp_exporter *smp_exporter_find(const char *name)
{
    for (int i = 0; name && i < N_EXPORTER; i++)
        if (strcmp(exporters[i]->name, name) == 0)
            return exporters[i];
    return NULL;
}

static smp_status fail_unknown(const char *option, const char *name)
{
    const char *names[N_EXPORTER];
    smp_text list = {0};
    for (int i = 0; i < N_EXPORTER; i++) {
        names[i] = exporters[i]->name;
        smp_text_append(&list, "%s%s", i ? ", " : "", names[i]);
    }
    const char *nearest = smp_nearest(name, names, N_EXPORTER);
    smp_status status =
        smp_fail(SMP_ERR_INPUT, "%s: got format '%s', expected one of %s%s%s%s", option, name,
                 list.data ? list.data : "", nearest ? "; did you mean '" : "",
                 nearest ? nearest : "", nearest ? "'?" : "");
    smp_text_free(&list);
    return status;
}

smp_status smp_export_parse(const char *option, const char *spec, const smp_exporter **exporter,
                            const char **path)
{
    char name[64];
    const char *colon = strchr(spec, ':');
    size_t length = colon ? (size_t)(colon - spec) : strlen(spec);
    if (length >= sizeof name)
        length = sizeof name - 1;
    memcpy(name, spec, length);
    name[length] = '\0';
    const smp_exporter *found = smp_exporter_find(name);
    if (!found)
        return fail_unknown(option, name);
    if (!colon || !colon[1])
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected FORMAT:FILE, such as %s:plan.%s",
                        option, spec, found->name, found->name);
    *exporter = found;
    *path = colon + 1;
    return SMP_OK;
}

static smp_status write_one(const smp_exporter *exporter, const smp_plan *plan,
                            const smp_graph *graph, const char *path, const char *suffix)
{
    smp_text text = {0}, name = {0};
    smp_text_append(&name, "%s%s", path, suffix);
    smp_status status = name.failed ? smp_fail_memory(strlen(path)) : SMP_OK;
    if (status == SMP_OK)
        status = exporter->write(plan, graph, &text);
    if (status == SMP_OK && text.failed)
        status = smp_fail_memory(text.capacity);
    if (status == SMP_OK)
        status = smp_file_write(name.data, text.data, text.length);
    smp_text_free(&text);
    smp_text_free(&name);
    return status;
}

smp_status smp_export_file(const smp_exporter *exporter, const smp_plan *plan,
                           const smp_graph *graph, const char *path)
{
    SMP_TRY(write_one(exporter, plan, graph, path, ""));
    if (!exporter->beside)
        return SMP_OK;
    return write_one(exporter->beside, plan, graph, path, exporter->beside_suffix);
}

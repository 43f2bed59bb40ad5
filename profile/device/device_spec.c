/* A device of a cluster: its figures in the cluster file, or in a description that this names,
 * whose figures it may replace. */
#include "profile/device/device_spec.h"

#include <stdlib.h>
#include <string.h>

#include "graph/yaml/yaml_field.h"

enum { MAX_DEPTH = 4 };

static const char *const DEVICE_KEYS[] = {"smp", /* of a file alone */
                                          "name",       "memory",      "compute", "bandwidth",
                                          "efficiency", "description", "speed"};

/* The files of examples/devices/, by smp_embed_folder. */
extern const char *const smp__device_descriptions_names[];
extern const unsigned char *const smp__device_descriptions_texts[];

static smp_status read_compute(const smp_yaml_node *device, smp_device_spec *spec)
{
    static const char *const keys[] = {"fp32", "tf32", "bf16", "fp16", "fp8"};
    static const char *const names[] = {"compute: tf32", "compute: bf16", "compute: fp16",
                                        "compute: fp8"};
    double *const optional[] = {&spec->flops_tf32, &spec->flops_bf16, &spec->flops_fp16,
                                &spec->flops_fp8};
    const smp_yaml_node *compute, *rate;
    SMP_TRY(smp__field_map(device, "device", "compute", keys, SMP__COUNT(keys), &compute));
    SMP_TRY(smp__field(compute, "compute", "fp32", &rate));
    SMP_TRY(smp_yaml_flops(rate, "compute: fp32", &spec->flops_fp32));
    for (int i = 0; i < (int)SMP__COUNT(optional); i++) {
        rate = smp_yaml_get(compute, keys[i + 1]);
        if (rate)
            SMP_TRY(smp_yaml_flops(rate, names[i], optional[i]));
    }
    return SMP_OK;
}

static smp_status read_memory(const smp_yaml_node *device, smp_device_spec *spec)
{
    const smp_yaml_node *memory;
    SMP_TRY(smp__field(device, "device", "memory", &memory));
    SMP_TRY(smp_yaml_bytes(memory, "device: memory", &spec->memory_bytes));
    if (spec->memory_bytes >= 1)
        return SMP_OK;
    return smp_fail_at(smp_yaml_where(memory), "device: memory: got '%s', expected more",
                       smp_yaml_text(memory));
}

smp_status smp_device_speed_read(const smp_yaml_node *map, const char *what, double *speed)
{
    return smp__field_double(map, what, "speed", SMP_LEAST_SPEED, 1.0, speed);
}

/* What the map says of a device; all but the name and the efficiency must be there, unless it is
 * known already. */
static smp_status read_figures(const smp_yaml_node *node, bool known, smp_arena *arena,
                               smp_device_spec *spec)
{
    const smp_yaml_node *bandwidth, *name = smp_yaml_get(node, "name");
    const smp_yaml_node *efficiency = smp_yaml_get(node, "efficiency");
    const char *text = "device";
    if (name)
        SMP_TRY(smp_yaml_string(name, "device: name", &text));
    if (name || !known)
        spec->name = smp_arena_strdup(arena, text);
    if (!spec->name)
        return SMP_ERR_NO_MEMORY;
    if (!known || smp_yaml_get(node, "memory"))
        SMP_TRY(read_memory(node, spec));
    if (!known || smp_yaml_get(node, "compute"))
        SMP_TRY(read_compute(node, spec));
    if (!known || smp_yaml_get(node, "bandwidth")) {
        SMP_TRY(smp__field(node, "device", "bandwidth", &bandwidth));
        SMP_TRY(smp_yaml_bytes_per_s(bandwidth, "device: bandwidth", &spec->bytes_per_s));
    }
    if (smp_yaml_get(node, "speed"))
        SMP_TRY(smp_device_speed_read(node, "device", &spec->speed));
    return efficiency ? smp_efficiency_read(efficiency, arena, &spec->efficiency) : SMP_OK;
}

/* `name` as it is meant in `file`: from that one's folder on. */
static char *path_from(const char *file, const char *name)
{
    const char *slash = name[0] == '/' ? NULL : strrchr(file, '/');
    const size_t folder = slash ? (size_t)(slash - file) + 1 : 0;
    char *path = malloc(folder + strlen(name) + 1);
    if (path) {
        memcpy(path, file, folder);
        strcpy(path + folder, name);
    }
    return path;
}

/* A file has a folder or an ending in its name; any other name is one of examples/devices/, which
 * are part of the library: a cluster file works wherever it is copied to. */
static smp_status open_description(const smp_yaml_node *named, smp_yaml **out)
{
    const char *name;
    SMP_TRY(smp_yaml_string(named, "device: description", &name));
    if (strpbrk(name, "/.")) {
        char *path = path_from(smp_yaml_where(named).file, name);
        const smp_status status = path ? smp_yaml_read(path, out) : SMP_ERR_NO_MEMORY;
        free(path);
        return status;
    }
    const char *const *known = smp__device_descriptions_names;
    size_t n = 0;
    for (; known[n]; n++)
        if (strcmp(name, known[n]) == 0) {
            const char *text = (const char *)smp__device_descriptions_texts[n];
            return smp_yaml_parse(name, text, strlen(text), out);
        }
    return smp_fail_unknown(smp_yaml_where(named), "device: description", "device", name, known, n);
}

static smp_status read_description(const smp_yaml_node *named, int depth, smp_arena *arena,
                                   smp_device_spec *spec);

/* A device of a cluster, or a description: both may name one and replace figures of it. */
static smp_status read_device(const smp_yaml_node *node, int depth, smp_arena *arena,
                              smp_device_spec *spec)
{
    const smp_yaml_node *named = smp_yaml_get(node, "description");
    if (named)
        SMP_TRY(read_description(named, depth + 1, arena, spec));
    return read_figures(node, named != NULL, arena, spec);
}

static smp_status read_description(const smp_yaml_node *named, int depth, smp_arena *arena,
                                   smp_device_spec *spec)
{
    const smp_yaml_node *top;
    smp_yaml *yaml = NULL;
    if (depth > MAX_DEPTH)
        return smp_fail_at(smp_yaml_where(named),
                           "device: description: more than %d name one another", MAX_DEPTH);
    smp_status status = open_description(named, &yaml);
    if (status == SMP_OK)
        status = smp_yaml_document(yaml, "device", DEVICE_KEYS, SMP__COUNT(DEVICE_KEYS), &top);
    if (status == SMP_OK)
        status = read_device(top, depth, arena, spec);
    smp_yaml_destroy(yaml);
    return status;
}

smp_status smp__device_read(const smp_yaml_node *node, smp_arena *arena, smp_device_spec *spec)
{
    SMP_TRY(smp_yaml_map(node, "device"));
    SMP_TRY(smp_yaml_known_keys(node, "device", DEVICE_KEYS + 1, SMP__COUNT(DEVICE_KEYS) - 1));
    return read_device(node, 0, arena, spec);
}

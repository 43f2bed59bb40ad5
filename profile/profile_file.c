/* The profile file: reading, checking against a model, writing. One line per op; linear in ops. */
#include "profile/profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/yaml/yaml_field.h"
#include "profile/estimate.h"

#define MAX_SPREAD 1e9

static smp_status read_text(const smp_yaml_node *map, const char *key, smp_arena *arena,
                            const char **out)
{
    const smp_yaml_node *node;
    const char *text;
    SMP_TRY(smp__field(map, "profile", key, &node));
    SMP_TRY(smp_yaml_string(node, key, &text));
    *out = smp_arena_strdup(arena, text);
    return *out ? SMP_OK : SMP_ERR_NO_MEMORY;
}

/* Optional numbers stay as they are where the key is absent. */
static smp_status read_us(const smp_yaml_node *map, const char *what, const char *key, double *out)
{
    return smp_yaml_get(map, key) ? smp__field_us(map, what, key, out) : SMP_OK;
}

/* 0: not measured. */
static smp_status read_rate(const smp_yaml_node *top, const char *key, double *out)
{
    return smp_yaml_get(top, key) ? smp__field_rate(top, "profile", key, true, out) : SMP_OK;
}

static smp_status read_bytes(const smp_yaml_node *map, const char *what, const char *key,
                             int64_t *out)
{
    return smp_yaml_get(map, key) ? smp__field_bytes(map, what, key, out) : SMP_OK;
}

static smp_status read_precision(const smp_yaml_node *top, smp_profile *profile)
{
    const smp_yaml_node *node;
    const char *text;
    smp_precision precision;
    SMP_TRY(smp__field(top, "profile", "dtype", &node));
    SMP_TRY(smp_yaml_string(node, "dtype", &text));
    SMP_TRY(smp_precision_read(smp_yaml_where(node), "dtype", text, &precision));
    profile->dtype = smp_precision_name(precision);
    const smp_target target = smp_profile_target(profile);
    if (smp_target_check(target) == SMP_OK)
        return SMP_OK;
    return smp_fail_at(smp_yaml_where(node),
                       "dtype: got %s, expected fp32, bf16, fp16 or fp8, which the %s has", text,
                       smp_backend_of(target)->title);
}

/* *of: which graph it was measured on, this one or the whole. */
static smp_status read_model(const smp_yaml_node *top, const smp_graph *graph, smp_profile *profile,
                             const smp_graph **of)
{
    static const char *const keys[] = {"name", "fingerprint"};
    const smp_yaml_node *model;
    SMP_TRY(smp__field_map(top, "profile", "model", keys, SMP__COUNT(keys), &model));
    SMP_TRY(read_text(model, "name", profile->arena, &profile->model));
    *of = smp_graph_whole(graph); /* who writes profiles by another tool knows no fingerprint */
    profile->fingerprint = (*of)->fingerprint;
    if (smp_yaml_get(model, "fingerprint"))
        SMP_TRY(smp__field_fingerprint(model, &profile->fingerprint));
    if (profile->fingerprint == graph->fingerprint)
        *of = graph;
    if (profile->fingerprint != (*of)->fingerprint)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(model, "fingerprint")),
                           "fingerprint: the profile was taken from another model, or from this "
                           "one split otherwise (%016" PRIx64 "), than %s (%016" PRIx64
                           "): run smp-profile again",
                           profile->fingerprint, graph->path, (*of)->fingerprint);
    return SMP_OK;
}

static smp_status read_op_cost(const smp_yaml_node *map, const smp_op *op, smp_op_cost *cost)
{
    char what[SMP_MAX_NAME + 16];
    snprintf(what, sizeof what, "op '%.*s'", SMP_MAX_NAME, op->name);
    SMP_TRY(smp__field_us(map, what, "forward_us", &cost->forward_us));
    SMP_TRY(smp__field_us(map, what, "backward_us", &cost->backward_us));
    cost->backward_weight_us = op->n_param > 0 ? 0.5 * cost->backward_us : 0;
    cost->backward_input_us = cost->backward_us - cost->backward_weight_us;
    SMP_TRY(read_us(map, what, "backward_input_us", &cost->backward_input_us));
    SMP_TRY(read_us(map, what, "backward_weight_us", &cost->backward_weight_us));
    SMP_TRY(read_bytes(map, what, "weight_bytes", &cost->weight_bytes));
    SMP_TRY(read_bytes(map, what, "stash_bytes", &cost->stash_bytes));
    SMP_TRY(read_bytes(map, what, "output_bytes", &cost->output_bytes));
    return read_bytes(map, what, "workspace_bytes", &cost->workspace_bytes);
}

static smp_status read_op(const smp_yaml_node *map, const smp_graph *graph, const char **names,
                          smp_op_cost *cost, double *spread, smp_arena *arena)
{
    static const char *const keys[] = {
        "name",         "forward_us",  "backward_us",  "backward_input_us", "backward_weight_us",
        "weight_bytes", "stash_bytes", "output_bytes", "workspace_bytes",   "spread"};
    const smp_yaml_node *node;
    const char *name;
    int32_t index;
    SMP_TRY(smp_yaml_map(map, "op"));
    SMP_TRY(smp_yaml_known_keys(map, "op", keys, SMP__COUNT(keys)));
    SMP_TRY(smp__field(map, "op", "name", &node));
    SMP_TRY(smp_yaml_string(node, "op: name", &name));
    index = smp_graph_find_op(graph, name);
    if (index < 0)
        return smp_fail_at(smp_yaml_where(node), "op '%s': the model has no op of this name", name);
    if (names[index])
        return smp_fail_at(smp_yaml_where(node), "op '%s': listed twice", name);
    names[index] = smp_arena_strdup(arena, name);
    if (!names[index])
        return SMP_ERR_NO_MEMORY;
    if (smp_yaml_get(map, "spread"))
        SMP_TRY(smp__field_double(map, "op", "spread", 0, MAX_SPREAD, &spread[index]));
    return read_op_cost(map, &graph->op[index], &cost[index]);
}

static smp_status read_ops(const smp_yaml_node *top, const smp_graph *graph, smp_profile *profile)
{
    const size_t n = (size_t)graph->n_op;
    const char **names = SMP_ARENA_NEW(profile->arena, const char *, n);
    smp_op_cost *cost = SMP_ARENA_NEW(profile->arena, smp_op_cost, n);
    double *spread = SMP_ARENA_NEW(profile->arena, double, n);
    const smp_yaml_node *ops;
    if (!names || !cost || !spread)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++)
        spread[i] = -1;
    SMP_TRY(smp__field_list(top, "profile", "ops", &ops));
    for (int i = 0; i < smp_yaml_list_size(ops); i++)
        SMP_TRY(read_op(smp_yaml_list_at(ops, i), graph, names, cost, spread, profile->arena));
    for (int32_t i = 0; i < graph->n_op; i++)
        if (!names[i])
            return smp_fail_at(smp_yaml_where(ops), "ops: op '%s' of the model is missing",
                               graph->op[i].name);
    profile->n_op = graph->n_op;
    profile->name = names;
    profile->op = cost;
    profile->spread = spread;
    return SMP_OK;
}

static smp_status read_links(const smp_yaml_node *top, smp_profile *profile)
{
    const char *names[SMP_LINK_KINDS];
    const smp_yaml_node *links = smp_yaml_get(top, "links");
    if (!links)
        return SMP_OK;
    for (int kind = 0; kind < SMP_LINK_KINDS; kind++)
        names[kind] = smp_link_name((smp_link_kind)kind);
    SMP_TRY(smp_yaml_map(links, "links"));
    SMP_TRY(smp_yaml_known_keys(links, "links", names, SMP_LINK_KINDS));
    for (int kind = 0; kind < SMP_LINK_KINDS; kind++)
        if (smp_yaml_get(links, names[kind]))
            SMP_TRY(smp_link_read(links, "links", names[kind], true, profile->arena,
                                  &profile->link[kind]));
    return SMP_OK;
}

static smp_status read_choice(const smp_yaml_node *map, smp_arena *arena, smp_gemm_choice *out)
{
    static const char *const keys[] = {"product", "algorithm", "us", "first_us"};
    const char *what = "products: chosen";
    SMP_TRY(smp_yaml_map(map, what));
    SMP_TRY(smp_yaml_known_keys(map, what, keys, SMP__COUNT(keys)));
    SMP_TRY(smp__field_text(map, what, "product", arena, &out->product));
    SMP_TRY(smp__field_text(map, what, "algorithm", arena, &out->algorithm));
    SMP_TRY(read_us(map, what, "us", &out->us));
    return read_us(map, what, "first_us", &out->first_us);
}

typedef struct named_choice {
    const char *product;
    int index;
} named_choice;

static int compare_named(const void *left, const void *right)
{
    const named_choice *a = left, *b = right;
    const int order = strcmp(a->product, b->product);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

/* A product is chosen for once. O(n log n). */
static smp_status check_different(const smp_yaml_node *list, const smp_gemm_choice *choice, int n)
{
    named_choice *named = calloc((size_t)n + 1, sizeof *named);
    if (!named)
        return smp_fail_memory((size_t)n * sizeof *named);
    for (int i = 0; i < n; i++)
        named[i] = (named_choice){choice[i].product, i};
    qsort(named, (size_t)n, sizeof *named, compare_named);
    smp_status status = SMP_OK;
    for (int i = 1; i < n && status == SMP_OK; i++) {
        if (strcmp(named[i].product, named[i - 1].product) != 0)
            continue;
        const smp_where first = smp_yaml_where(smp_yaml_list_at(list, named[i - 1].index));
        const smp_yaml_node *second = smp_yaml_list_at(list, named[i].index);
        status = smp_fail_at(smp_yaml_where(smp_yaml_get(second, "product")),
                             "products: chosen: product '%s': got it twice, first at line %d",
                             named[i].product, first.line);
    }
    free(named);
    return status;
}

smp_status smp_gemm_choices_read(const smp_yaml_node *top, const char *what, smp_arena *arena,
                                 smp_gemm_choices *out)
{
    static const char *const keys[] = {"format", "device", "library", "chosen"};
    const smp_yaml_node *map, *list;
    int format;
    *out = (smp_gemm_choices){0};
    if (!smp_yaml_get(top, "products"))
        return SMP_OK;
    SMP_TRY(smp__field_map(top, what, "products", keys, SMP__COUNT(keys), &map));
    what = "products";
    SMP_TRY(smp__field_int(map, what, "format", SMP_GEMMS_FORMAT, SMP_GEMMS_FORMAT, &format));
    SMP_TRY(smp__field_text(map, what, "device", arena, &out->device));
    SMP_TRY(smp__field_text(map, what, "library", arena, &out->library));
    SMP_TRY(smp__field_list(map, what, "chosen", &list));
    const int n = smp_yaml_list_size(list);
    smp_gemm_choice *choice = SMP_ARENA_NEW(arena, smp_gemm_choice, (size_t)n);
    if (!choice)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < n; i++)
        SMP_TRY(read_choice(smp_yaml_list_at(list, i), arena, &choice[i]));
    SMP_TRY(check_different(list, choice, n));
    out->n = n;
    out->choice = choice;
    return SMP_OK;
}

static smp_status read_profile(const smp_yaml *yaml, const smp_graph *graph, smp_profile *profile)
{
    static const char *const keys[] = {"smp",
                                       "model",
                                       "device",
                                       "dtype",
                                       "microbatch_size",
                                       "optimizer_bytes_per_s",
                                       "ops",
                                       "links",
                                       "reduce_bytes_per_s",
                                       "memory",
                                       "core_switch_us",
                                       "state_precision",
                                       "libraries",
                                       "products",
                                       "scatter",
                                       "keep_bytes_per_s",
                                       "launch"};
    const smp_yaml_node *top, *node;
    const smp_graph *of;
    SMP_TRY(smp_yaml_document(yaml, "profile", keys, SMP__COUNT(keys), &top));
    SMP_TRY(read_model(top, graph, profile, &of));
    SMP_TRY(read_text(top, "device", profile->arena, &profile->device));
    SMP_TRY(read_precision(top, profile));
    SMP_TRY(read_bytes(top, "profile", "memory", &profile->memory_bytes));
    SMP_TRY(read_bytes(top, "profile", "libraries", &profile->library_bytes));
    SMP_TRY(smp__field(top, "profile", "microbatch_size", &node));
    SMP_TRY(
        smp_yaml_int(node, "microbatch_size", 1, SMP__MAX_MICROBATCH, &profile->microbatch_size));
    SMP_TRY(read_rate(top, "optimizer_bytes_per_s", &profile->optimizer_bytes_per_s));
    SMP_TRY(smp__field_bf16(top, "profile", "state_precision", &profile->bf16_states));
    SMP_TRY(read_rate(top, "reduce_bytes_per_s", &profile->reduce_bytes_per_s));
    SMP_TRY(read_us(top, "profile", "core_switch_us", &profile->core_switch_us));
    if (smp_yaml_get(top, "keep_bytes_per_s"))
        SMP_TRY(read_rate(top, "keep_bytes_per_s", &profile->keep_bytes_per_s));
    SMP_TRY(smp_scatter_read(top, "profile", &profile->scatter));
    SMP_TRY(smp_launch_costs_read(top, "profile", &profile->launch));
    SMP_TRY(read_ops(top, of, profile));
    SMP_TRY(smp_gemm_choices_read(top, "profile", profile->arena, &profile->products));
    return read_links(top, profile);
}

smp_status smp_profile_read(const char *path, const smp_graph *graph, smp_profile **out)
{
    smp_yaml *yaml = NULL;
    SMP_TRY(smp_yaml_read(path, &yaml));
    smp_arena *arena = smp_arena_create();
    smp_profile *profile = arena ? SMP_ARENA_NEW(arena, smp_profile, 1) : NULL;
    if (profile)
        profile->arena = arena;
    smp_status status = profile ? read_profile(yaml, graph, profile) : SMP_ERR_NO_MEMORY;
    smp_yaml_destroy(yaml);
    if (status != SMP_OK) {
        smp_arena_destroy(arena);
        return status;
    }
    *out = profile;
    return SMP_OK;
}

void smp_profile_destroy(smp_profile *profile)
{
    if (profile)
        smp_arena_destroy(profile->arena);
}

smp_target smp_profile_target(const smp_profile *profile)
{
    smp_target target = {.backend = smp_backend_of_device(profile->device)};
    (void)smp_precision_find(profile->dtype, &target.precision);
    return target;
}

smp_status smp_profile_check_target(const smp_profile *profile, smp_target target)
{
    const char *wanted = smp_precision_name(target.precision);
    const smp_target measured = smp_profile_target(profile);
    if (measured.backend == target.backend && measured.precision == target.precision)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "profile: its times were measured on '%s' in %s, the plan is for %s in %s: "
                    "measure them with smp-profile --device %s --dtype %s",
                    profile->device, profile->dtype, smp_backend_name(target.backend), wanted,
                    smp_backend_name(target.backend), wanted);
}

static void put_double(smp_text *yaml, const char *before, double value)
{
    smp_text_append(yaml, "%s", before);
    smp_text_append_double(yaml, value);
}

static void put_op(smp_text *yaml, const char *name, const smp_op_cost *cost, double spread)
{
    smp_text_append(yaml, "  - {name: ");
    smp_text_append_quoted(yaml, name);
    put_double(yaml, ", forward_us: ", cost->forward_us);
    put_double(yaml, ", backward_us: ", cost->backward_us);
    put_double(yaml, ", backward_input_us: ", cost->backward_input_us);
    put_double(yaml, ", backward_weight_us: ", cost->backward_weight_us);
    smp_text_append(yaml, ", weight_bytes: %" PRId64 ", stash_bytes: %" PRId64, cost->weight_bytes,
                    cost->stash_bytes);
    smp_text_append(yaml, ", output_bytes: %" PRId64 ", workspace_bytes: %" PRId64,
                    cost->output_bytes, cost->workspace_bytes);
    if (spread >= 0)
        put_double(yaml, ", spread: ", spread);
    smp_text_append(yaml, "}\n");
}

static void put_link(smp_text *yaml, const char *name, const smp_link_spec *link)
{
    smp_text_append(yaml, "  %s:", name);
    put_double(yaml, "\n    latency_us: ", link->latency_us);
    put_double(yaml, "\n    bytes_per_s: ", link->bytes_per_s);
    smp_text_append(yaml, "\n    points:\n");
    for (int i = 0; i < link->n_point; i++) {
        smp_text_append(yaml, "      - {bytes: %" PRId64, link->point_bytes[i]);
        put_double(yaml, ", us: ", link->point_us[i]);
        smp_text_append(yaml, "}\n");
    }
}

static void put_links(smp_text *yaml, const smp_link_spec *link)
{
    bool first = true;
    for (int kind = 0; kind < SMP_LINK_KINDS; kind++) {
        if (link[kind].n_point == 0)
            continue;
        smp_text_append(yaml, "%s", first ? "links:\n" : "");
        put_link(yaml, smp_link_name((smp_link_kind)kind), &link[kind]);
        first = false;
    }
}

static void put_products(smp_text *yaml, const smp_gemm_choices *products)
{
    if (!products->device)
        return;
    smp_text_append(yaml, "products:\n  format: %d\n  device: ", SMP_GEMMS_FORMAT);
    smp_text_append_quoted(yaml, products->device);
    smp_text_append(yaml, "\n  library: ");
    smp_text_append_quoted(yaml, products->library);
    smp_text_append(yaml, "\n  chosen:%s\n", products->n > 0 ? "" : " []");
    for (int i = 0; i < products->n; i++) {
        smp_text_append(yaml, "    - {product: ");
        smp_text_append_quoted(yaml, products->choice[i].product);
        smp_text_append(yaml, ", algorithm: ");
        smp_text_append_quoted(yaml, products->choice[i].algorithm);
        if (products->choice[i].us > 0)
            put_double(yaml, ", us: ", products->choice[i].us);
        if (products->choice[i].first_us > 0)
            put_double(yaml, ", first_us: ", products->choice[i].first_us);
        smp_text_append(yaml, "}\n");
    }
}

static void put_launch(smp_text *yaml, const smp_launch_costs *launch)
{
    if (launch->kernel_us <= 0)
        return;
    put_double(yaml, "\nlaunch: {kernel_us: ", launch->kernel_us);
    put_double(yaml, ", graph_us: ", launch->graph_us);
    put_double(yaml, ", graph_kernel_us: ", launch->graph_kernel_us);
    smp_text_append(yaml, "}");
}

smp_status smp_profile_format(const smp_profile *profile, smp_text *yaml)
{
    smp_text_append(yaml, "smp: 1\nmodel: {name: ");
    smp_text_append_quoted(yaml, profile->model);
    smp_text_append(yaml, ", fingerprint: \"%016" PRIx64 "\"}\ndevice: ", profile->fingerprint);
    smp_text_append_quoted(yaml, profile->device);
    smp_text_append(yaml, "\ndtype: %s\n", profile->dtype);
    if (profile->memory_bytes > 0)
        smp_text_append(yaml, "memory: %" PRId64 "\n", profile->memory_bytes);
    if (profile->library_bytes > 0)
        smp_text_append(yaml, "libraries: %" PRId64 "\n", profile->library_bytes);
    smp_text_append(yaml, "microbatch_size: %" PRId64 "\n", profile->microbatch_size);
    put_double(yaml, "optimizer_bytes_per_s: ", profile->optimizer_bytes_per_s);
    if (profile->bf16_states)
        smp_text_append(yaml, "\nstate_precision: bf16");
    put_double(yaml, "\nreduce_bytes_per_s: ", profile->reduce_bytes_per_s);
    if (profile->core_switch_us > 0)
        put_double(yaml, "\ncore_switch_us: ", profile->core_switch_us);
    if (profile->keep_bytes_per_s > 0)
        put_double(yaml, "\nkeep_bytes_per_s: ", profile->keep_bytes_per_s);
    if (profile->scatter > 0)
        put_double(yaml, "\nscatter: ", profile->scatter);
    put_launch(yaml, &profile->launch);
    smp_text_append(yaml, "\nops:%s\n", profile->n_op > 0 ? "" : " []");
    for (int32_t i = 0; i < profile->n_op; i++)
        put_op(yaml, profile->name[i], &profile->op[i], profile->spread ? profile->spread[i] : -1);
    put_products(yaml, &profile->products);
    put_links(yaml, profile->link);
    return yaml->failed ? smp_fail_memory(yaml->capacity) : SMP_OK;
}

smp_status smp_profile_write(const smp_profile *profile, const char *path)
{
    smp_text yaml = {0};
    smp_status status = smp_profile_format(profile, &yaml);
    if (status == SMP_OK)
        status = smp_file_write(path, yaml.data, yaml.length);
    smp_text_free(&yaml);
    return status;
}

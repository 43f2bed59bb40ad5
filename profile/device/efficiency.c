/* Products as tiles: a device of P processors computes the tiles of a product in waves of P, so
 * that what the last wave lacks is lost, and each tile takes the way in and out of its sum besides
 * (tile and wave quantization: NVIDIA, "Matrix multiplication background user's guide"). Libraries
 * choose among tiles, and cut long sums of small results into parts that run at once; so does the
 * estimate, which takes the best. */
#include "profile/device/efficiency.h"

#include <math.h>

#include "graph/yaml/yaml_field.h"

/* Parts of a sum are no shorter: libraries split sums over some thousand. */
#define LEAST_SPLIT_K 512

enum { MOST_SPLITS = 8 };

#define FIELD(key, member, least, most)                                                            \
    {                                                                                              \
        key, offsetof(smp_efficiency, member), least, most                                         \
    }
/* Shares are 0.001 at least, so that no time is infinite. */
const smp_efficiency_field smp_efficiency_fields[] = {
    FIELD("products", products, 0.001, 1),
    FIELD("lost_k", lost_k, 0, 1e6),
    FIELD("processors", processors, 0, 1e6),
    FIELD("attention_forward", attention_forward, 0.001, 1),
    FIELD("attention_backward", attention_backward, 0.001, 1),
    FIELD("attention_keys", attention_keys, 0, 1e6),
    FIELD("score_bytes_forward", score_bytes_forward, 0, 1e3),
    FIELD("score_bytes_backward", score_bytes_backward, 0, 1e3),
    FIELD("memory", memory, 0.001, 1),
    FIELD("call_us", call_us, 0, 1e6),
    FIELD("host_us", host_us, 0, 1e6),
    FIELD("overlap_loss", overlap_loss, 0, 1),
    FIELD("error", error, 0, 10),
};
const int smp_efficiency_n_field = (int)SMP__COUNT(smp_efficiency_fields);

const smp_efficiency smp_efficiency_ideal = {.products = 1,
                                             .attention_forward = 1,
                                             .attention_backward = 1,
                                             .memory = 1,
                                             .call_us = 1,
                                             .from = ""};

static smp_status read_tiles(const smp_yaml_node *map, smp_efficiency *out)
{
    static const char *const keys[] = {"rows", "columns", "share"};
    const smp_yaml_node *list;
    if (!smp_yaml_get(map, "tiles"))
        return SMP_OK;
    SMP_TRY(smp__field_list(map, "efficiency", "tiles", &list));
    if (smp_yaml_list_size(list) > SMP_MAX_TILES)
        return smp_fail_at(smp_yaml_where(list), "efficiency: tiles: got %d, expected at most %d",
                           smp_yaml_list_size(list), SMP_MAX_TILES);
    for (out->n_tile = 0; out->n_tile < smp_yaml_list_size(list); out->n_tile++) {
        const smp_yaml_node *node = smp_yaml_list_at(list, out->n_tile);
        smp_tile *tile = &out->tile[out->n_tile];
        SMP_TRY(smp_yaml_map(node, "tile"));
        SMP_TRY(smp_yaml_known_keys(node, "tile", keys, SMP__COUNT(keys)));
        SMP_TRY(smp__field_int(node, "tile", "rows", 1, 1 << 20, &tile->rows));
        SMP_TRY(smp__field_int(node, "tile", "columns", 1, 1 << 20, &tile->columns));
        SMP_TRY(smp__field_double(node, "tile", "share", 0.001, 1, &tile->share));
    }
    return SMP_OK;
}

smp_status smp_efficiency_read(const smp_yaml_node *map, smp_arena *arena,
                               const smp_efficiency **out)
{
    const char *keys[SMP__COUNT(smp_efficiency_fields) + 2] = {"tiles", "from"};
    smp_efficiency *read = SMP_ARENA_NEW(arena, smp_efficiency, 1);
    if (!read)
        return SMP_ERR_NO_MEMORY;
    *read = *out ? **out : smp_efficiency_ideal;
    for (int i = 0; i < smp_efficiency_n_field; i++)
        keys[i + 2] = smp_efficiency_fields[i].key;
    SMP_TRY(smp_yaml_map(map, "efficiency"));
    SMP_TRY(smp_yaml_known_keys(map, "efficiency", keys, SMP__COUNT(keys)));
    for (int i = 0; i < smp_efficiency_n_field; i++) {
        const smp_efficiency_field *f = &smp_efficiency_fields[i];
        if (smp_yaml_get(map, f->key))
            SMP_TRY(smp__field_double(map, "efficiency", f->key, f->least, f->most,
                                      (double *)((char *)read + f->offset)));
    }
    SMP_TRY(read_tiles(map, read));
    if (smp_yaml_get(map, "from"))
        SMP_TRY(smp__field_text(map, "efficiency", "from", arena, &read->from));
    *out = read;
    return SMP_OK;
}

smp_status smp_efficiency_copy(const smp_efficiency *from, smp_arena *arena,
                               const smp_efficiency **out)
{
    smp_efficiency *to = SMP_ARENA_NEW(arena, smp_efficiency, 1);
    if (!to)
        return SMP_ERR_NO_MEMORY;
    *to = *from;
    to->from = smp_arena_strdup(arena, from->from);
    *out = to;
    return to->from ? SMP_OK : SMP_ERR_NO_MEMORY;
}

bool smp_efficiency_alike(const smp_efficiency *a, const smp_efficiency *b)
{
    if (a == b)
        return true;
    bool alike = a->n_tile == b->n_tile;
    for (int i = 0; alike && i < smp_efficiency_n_field; i++) {
        const size_t at = smp_efficiency_fields[i].offset;
        alike = *(const double *)((const char *)a + at) == *(const double *)((const char *)b + at);
    }
    for (int i = 0; alike && i < a->n_tile; i++)
        alike = a->tile[i].rows == b->tile[i].rows && a->tile[i].columns == b->tile[i].columns &&
                a->tile[i].share == b->tile[i].share;
    return alike;
}

smp_op_product smp_part_product(const smp_op_product *forward, smp_op_part part)
{
    const smp_op_product p = *forward;
    switch (part) {
    case SMP_OP_BACKWARD_INPUT:
        return (smp_op_product){p.count, p.m, p.k, p.n};
    case SMP_OP_BACKWARD_WEIGHT:
        return (smp_op_product){p.count, p.n, p.k, p.m};
    default:
        return p;
    }
}

/* Of what whole waves of the tile would reach, with the sum in so many parts. */
static double tile_share(const smp_efficiency *e, const smp_tile *tile, const smp_op_product *p,
                         int splits)
{
    const double m = (double)p->m, n = (double)p->n, k = (double)p->k / splits;
    const double tiles = (double)p->count * splits * ceil(m / tile->rows) * ceil(n / tile->columns);
    const double waves = ceil(tiles / e->processors);
    const double made = (double)p->count * splits * m * n * k;
    return tile->share * made /
           (waves * e->processors * tile->rows * tile->columns * (k + e->lost_k));
}

static double product_share(const smp_efficiency *e, const smp_op_product *p)
{
    const double k = (double)p->k;
    if (p->count < 1 || p->m < 1 || p->n < 1 || p->k < 1)
        return e->products;
    if (e->processors < 1 || e->n_tile == 0)
        return e->products * k / (k + e->lost_k);
    double best = 0;
    for (int i = 0; i < e->n_tile; i++)
        for (int splits = 1; splits <= MOST_SPLITS; splits *= 2)
            if (splits == 1 || k >= LEAST_SPLIT_K * splits)
                best = fmax(best, tile_share(e, &e->tile[i], p, splits));
    return fmax(e->products * best, 1e-6);
}

static double attention_share(const smp_efficiency *e, const smp_op_product *p, smp_op_part part)
{
    const double share = part == SMP_OP_FORWARD ? e->attention_forward : e->attention_backward;
    const double keys = (double)p->n;
    return keys > 0 ? share * keys / (keys + e->attention_keys) : share;
}

static double product_us(const smp_efficiency *e, smp_op_product p, double flops_per_s)
{
    const double flops = 2.0 * (double)p.count * (double)p.m * (double)p.n * (double)p.k;
    return flops > 0 ? 1e6 * flops / (flops_per_s * product_share(e, &p)) : 0;
}

/* Q K^T and P V; backward makes the gradients of P, Q, K and V. */
static double written_attention_us(const smp_efficiency *e, const smp_op_product *of,
                                   smp_op_part part, double flops_per_s, double bytes_per_s)
{
    const bool forward = part == SMP_OP_FORWARD;
    const smp_op_product scores = *of, values = {of->count, of->m, of->k, of->n},
                         keys = {of->count, of->n, of->k, of->m};
    const double bytes = (double)of->count * (double)of->m * (double)of->n *
                         (forward ? e->score_bytes_forward : e->score_bytes_backward);
    double us = 1e6 * bytes / bytes_per_s + product_us(e, scores, flops_per_s) +
                product_us(e, values, flops_per_s);
    return forward ? us : us + 2 * product_us(e, keys, flops_per_s);
}

smp_part_amount smp_part_amount_of(const smp_op_work *work, smp_op_part part)
{
    switch (part) {
    case SMP_OP_BACKWARD_INPUT:
        return (smp_part_amount){work->backward_input_flops, work->backward_input_bytes,
                                 work->backward_input_moved};
    case SMP_OP_BACKWARD_WEIGHT:
        return (smp_part_amount){work->backward_weight_flops, work->backward_weight_bytes,
                                 work->backward_weight_moved};
    default:
        return (smp_part_amount){work->forward_flops, work->forward_bytes, work->forward_moved};
    }
}

/* Two products forward and five backward, each a call of half a microsecond (blocks of 16 rows by
 * 16 to 32 keys, AMD EPYC). */
double smp_blocks_us(const smp_op_work *work, smp_op_part part)
{
    return part == SMP_OP_FORWARD          ? work->blocks
           : part == SMP_OP_BACKWARD_INPUT ? 2.5 * work->blocks
                                           : 0;
}

static double call_us(const smp_efficiency *e, double us)
{
    return us > 0 ? us + e->call_us : 0;
}

double smp_efficiency_us(const smp_efficiency *e, const smp_op_work *work, smp_op_part part,
                         double flops_per_s, double bytes_per_s)
{
    const smp_part_amount of = smp_part_amount_of(work, part);
    const double rate = bytes_per_s * e->memory;
    double share = 1;
    if (work->kind == SMP_OP_ATTENTION && part != SMP_OP_BACKWARD_WEIGHT &&
        e->score_bytes_forward > 0)
        return call_us(e, written_attention_us(e, &work->product, part, flops_per_s, rate));
    if (work->kind == SMP_OP_ATTENTION) {
        share = attention_share(e, &work->product, part);
    } else if (work->kind == SMP_OP_PRODUCT) {
        const smp_op_product p = smp_part_product(&work->product, part);
        share = product_share(e, &p);
    }
    return call_us(e, 1e6 * fmax(of.flops / (flops_per_s * share), of.bytes / rate)) +
           call_us(e, 1e6 * of.moved / rate) + smp_blocks_us(work, part);
}

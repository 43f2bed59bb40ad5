/* Direct convolution by oneDNN: the primitive's own layouts, and reorders to and from them.
 *
 * A direct convolution runs at 95 % or more of a core's peak on images of which 8 or 16 channels
 * lie side by side, and at half of it or less on row-major ones. So arrays are reordered through
 * the workspace, a few samples at a time: a chunk stays in the cache between the reorders and the
 * convolution, which makes them nearly free (32 MB of images at once took 20 % longer than chunks
 * of 1 to 8 MB), and the workspace does not grow with the batch. Weights are reordered once a
 * call. Gradients of weights are made for a chunk and added: oneDNN overwrites.
 *
 * Chunks follow from sizes alone. So does the limit of the workspace: both image chunks and the
 * weights with channels rounded up to whole blocks of the widest layout, and what a strided 1 x 1
 * convolution gathers or one in bf16 transposes. An implementation that wants more is passed
 * over. */
#include "graph/math/convolution_direct.h"

#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "graph/math/onednn.h"
#include "graph/math/vector.h"

enum { BLOCK = 16, ALIGNMENT = 64, SLACK = 4096 }; /* SLACK: bias in blocks, alignments */

/* Bytes of both images of a chunk, besides those of the weights: few samples of large images, which
 * must stay in the cache; many where the weights are what is moved. */
#define CHUNK_BYTES ((int64_t)2 << 20)

enum { FIRST, SECOND, RESULT, ARRAYS };

/* One array of a call. */
typedef struct array {
    int argument;          /* DNNL_ARG_... */
    dnnl_memory_t theirs;  /* row-major, the caller's */
    dnnl_memory_t ours;    /* in the primitive's layout, in the workspace; NULL: as the caller's */
    dnnl_primitive_t move; /* from theirs to ours; of the result, back */
    int64_t place;         /* of ours in the workspace */
    int64_t step;          /* bytes from a chunk to the next; 0: weights, the same for all */
} array;

struct smp__direct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    array array[ARRAYS];
    dnnl_memory_t bias, scratch; /* NULL: none */
    int64_t scratch_place;
    int64_t chunks;
    int64_t sum_place, sum_elements; /* a chunk's row-major gradient of the weights, to be added */
};

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static int64_t weight_elements(const smp_convolution_shape *s)
{
    return s->out[SMP_CHANNELS] * smp_convolution_taps(s);
}

static int64_t element_bytes(const smp_convolution_shape *s)
{
    return s->half ? 2 : 4;
}

/* In the widest layout. Channels of a group are not filled up: there is a layout for whole blocks
 * of them, or none. */
static int64_t image_bytes(const smp_convolution_shape *s, const int64_t size[3])
{
    return round_up(size[SMP_CHANNELS], BLOCK) * size[SMP_HEIGHT] * size[SMP_WIDTH] *
           element_bytes(s);
}

static int64_t weight_bytes(const smp_convolution_shape *s)
{
    int64_t in = s->in[SMP_CHANNELS] / s->groups;
    in = s->groups == 1 ? round_up(in, BLOCK) : in;
    return round_up(s->out[SMP_CHANNELS], BLOCK) * in * s->kernel[0] * s->kernel[1] *
           (int64_t)sizeof(float);
}

/* Samples of a chunk: the most that divide the batch and stay within the bytes. */
static int64_t chunk_samples(const smp_convolution_shape *s)
{
    const int64_t most =
        (CHUNK_BYTES + weight_bytes(s)) / (image_bytes(s, s->in) + image_bytes(s, s->out));
    int64_t samples = most < s->batch ? most : s->batch;
    while (samples > 1 && s->batch % samples != 0)
        samples--;
    return samples > 1 ? samples : 1;
}

/* The places of one sample that a 1 x 1 convolution with strides reads. */
static int64_t gathered_bytes(const smp_convolution_shape *s)
{
    const bool strided = s->stride[0] > 1 || s->stride[1] > 1;
    const int64_t size[3] = {s->in[SMP_CHANNELS], s->out[SMP_HEIGHT], s->out[SMP_WIDTH]};
    return strided && s->kernel[0] == 1 && s->kernel[1] == 1 ? image_bytes(s, size) : 0;
}

/* Gradients of weights in bf16 take pairs of places, for which a sample's images are transposed,
 * lines with their padding filled up. */
static int64_t transposed_bytes(const smp_convolution_shape *s)
{
    const int64_t x_line = round_up(s->in[SMP_WIDTH] + 2 * s->padding[1], BLOCK);
    const int64_t x[3] = {s->in[SMP_CHANNELS], s->in[SMP_HEIGHT], x_line};
    const int64_t y[3] = {s->out[SMP_CHANNELS], s->out[SMP_HEIGHT],
                          round_up(s->out[SMP_WIDTH], BLOCK)};
    return s->half ? image_bytes(s, x) + image_bytes(s, y) : 0;
}

/* Their code counts in 32 bits. */
static bool fits_32_bits(const smp_convolution_shape *s)
{
    const int64_t image = chunk_samples(s) * (image_bytes(s, s->in) + image_bytes(s, s->out));
    const int64_t limit = (int64_t)1 << 24; /* of attributes */
    for (int i = 0; i < 2; i++)
        if (s->kernel[i] > limit || s->stride[i] > limit || s->padding[i] > limit ||
            s->dilation[i] > limit)
            return false;
    return image <= INT32_MAX && weight_bytes(s) <= INT32_MAX;
}

int64_t smp__direct_workspace(const smp_convolution_shape *s)
{
    if (!fits_32_bits(s))
        return 0;
    return chunk_samples(s) * (image_bytes(s, s->in) + image_bytes(s, s->out)) +
           2 * weight_bytes(s) + gathered_bytes(s) + transposed_bytes(s) + SLACK;
}

typedef struct descriptions {
    dnnl_memory_desc_t row_major[ARRAYS], any[ARRAYS]; /* x, w or its gradient, y */
    dnnl_memory_desc_t weight, bias;
    dnnl_dims_t stride, dilation, padding;
} descriptions;

static smp_status describe(dnnl_memory_desc_t *out, int n, const dnnl_dims_t dims,
                           dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    return smp__dnnl_check(dnnl_memory_desc_init_by_tag(out, n, dims, type, tag),
                           "describing an array of a convolution");
}

/* Gradients of weights are added up in fp32. */
static smp_status describe_arrays(const smp_convolution_shape *s, smp__direction direction,
                                  descriptions *d)
{
    const dnnl_data_type_t image = s->half ? dnnl_bf16 : dnnl_f32;
    const dnnl_data_type_t weight = direction == SMP__BACKWARD_WEIGHT ? dnnl_f32 : image;
    const int64_t n = chunk_samples(s), g = s->groups, out = s->out[SMP_CHANNELS] / g;
    const int64_t in = s->in[SMP_CHANNELS] / g, height = s->kernel[0], width = s->kernel[1];
    const dnnl_dims_t dims[ARRAYS] = {{n, s->in[0], s->in[1], s->in[2]},
                                      {out, in, height, width},
                                      {n, s->out[0], s->out[1], s->out[2]}};
    const dnnl_dims_t grouped = {g, out, in, height, width}, bias = {s->out[0]};
    for (int i = 0; i < ARRAYS; i++) {
        const bool five = i == 1 && g > 1;
        const int64_t *of = five ? grouped : dims[i];
        const dnnl_data_type_t type = i == 1 ? weight : image;
        SMP_TRY(describe(&d->row_major[i], five ? 5 : 4, of, type, five ? dnnl_abcde : dnnl_abcd));
        SMP_TRY(describe(&d->any[i], five ? 5 : 4, of, type, dnnl_format_tag_any));
        if (i == 1)
            SMP_TRY(describe(&d->weight, five ? 5 : 4, of, image, dnnl_format_tag_any));
    }
    for (int i = 0; i < 2; i++) {
        d->stride[i] = s->stride[i];
        d->padding[i] = s->padding[i];
        d->dilation[i] = s->dilation[i] - 1;
    }
    return describe(&d->bias, 1, bias, dnnl_f32, dnnl_a);
}

static smp_status describe_convolution(const descriptions *d, smp__direction direction, bool bias,
                                       dnnl_convolution_desc_t *out)
{
    const dnnl_alg_kind_t how = dnnl_convolution_direct;
    const dnnl_memory_desc_t *x = &d->any[0], *w = &d->weight, *y = &d->any[2];
    dnnl_status_t status;
    if (direction == SMP__FORWARD)
        status = dnnl_dilated_convolution_forward_desc_init(out, dnnl_forward_training, how, x, w,
                                                            bias ? &d->bias : NULL, y, d->stride,
                                                            d->dilation, d->padding, d->padding);
    else if (direction == SMP__BACKWARD_INPUT)
        status = dnnl_dilated_convolution_backward_data_desc_init(
            out, how, x, w, y, d->stride, d->dilation, d->padding, d->padding);
    else
        status = dnnl_dilated_convolution_backward_weights_desc_init(
            out, how, x, &d->any[1], NULL, y, d->stride, d->dilation, d->padding, d->padding);
    return smp__dnnl_check(status, "describing a convolution");
}

/* Which array of the call is which of (x, w, y), and what oneDNN calls it. */
typedef struct role {
    int array, argument;
    dnnl_query_t query;
} role;

static const role ROLES[SMP__DIRECTIONS][ARRAYS] = {
    {{0, DNNL_ARG_SRC, dnnl_query_src_md},
     {1, DNNL_ARG_WEIGHTS, dnnl_query_weights_md},
     {2, DNNL_ARG_DST, dnnl_query_dst_md}},
    {{2, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md},
     {1, DNNL_ARG_WEIGHTS, dnnl_query_weights_md},
     {0, DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md}},
    {{0, DNNL_ARG_SRC, dnnl_query_src_md},
     {2, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md},
     {1, DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md}},
};

/* Workspace of an implementation, and the places in it. */
static int64_t place_arrays(const dnnl_memory_desc_t *row_major, smp__direction direction,
                            const_dnnl_primitive_desc_t desc, smp__direct *d)
{
    int64_t at = 0;
    for (int i = 0; i < ARRAYS; i++) {
        const role *r = &ROLES[direction][i];
        const dnnl_memory_desc_t *ours = dnnl_primitive_desc_query_md(desc, r->query, 0);
        d->array[i].place = at;
        if (!dnnl_memory_desc_equal(ours, &row_major[r->array]))
            at += round_up((int64_t)dnnl_memory_desc_get_size(ours), ALIGNMENT);
    }
    d->sum_place = at;
    if (direction == SMP__BACKWARD_WEIGHT)
        at += round_up(d->sum_elements * (int64_t)sizeof(float), ALIGNMENT);
    d->scratch_place = at;
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    return at + (scratch ? (int64_t)dnnl_memory_desc_get_size(scratch) : 0);
}

/* Is an implementation of oneDNN a direct one ("jit:avx2"), neither a matrix product nor a
 * reference loop? In the order in which oneDNN has them. */
static bool is_direct(const_dnnl_primitive_desc_t desc)
{
    const char *name = "";
    return dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name) ==
               dnnl_success &&
           strncmp(name, "jit", 3) == 0;
}

/* *out: NULL if there is none that is direct and stays within `limit` bytes of workspace. */
static smp_status find(const descriptions *all, smp__direction direction,
                       const dnnl_convolution_desc_t *what, const_dnnl_primitive_attr_t attr,
                       const_dnnl_primitive_desc_t forward, int64_t limit, smp__direct *d,
                       dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_iterator_t each = NULL;
    dnnl_status_t status =
        dnnl_primitive_desc_iterator_create(&each, what, attr, d->engine, forward);
    *out = NULL;
    while (status == dnnl_success) {
        dnnl_primitive_desc_t desc = dnnl_primitive_desc_iterator_fetch(each);
        if (!desc) {
            status = dnnl_out_of_memory;
            break;
        }
        if (is_direct(desc) && place_arrays(all->row_major, direction, desc, d) <= limit) {
            *out = desc;
            break;
        }
        dnnl_primitive_desc_destroy(desc);
        status = dnnl_primitive_desc_iterator_next(each);
    }
    if (each)
        dnnl_primitive_desc_iterator_destroy(each);
    if (status == dnnl_iterator_ends || status == dnnl_unimplemented)
        return SMP_OK;
    return smp__dnnl_check(status, "choosing a convolution");
}

static smp_status make_memory(const smp__direct *d, const dnnl_memory_desc_t *of,
                              dnnl_memory_t *out)
{
    return smp__dnnl_check(dnnl_memory_create(out, of, d->engine, DNNL_MEMORY_NONE),
                           "making a memory object");
}

static smp_status make_move(const smp__direct *d, const dnnl_memory_desc_t *from,
                            const dnnl_memory_desc_t *to, dnnl_primitive_t *out)
{
    dnnl_primitive_desc_t desc = NULL;
    smp_status status = smp__dnnl_check(
        dnnl_reorder_primitive_desc_create(&desc, from, d->engine, to, d->engine, NULL),
        "describing a reorder");
    if (status == SMP_OK)
        status = smp__dnnl_check(dnnl_primitive_create(out, desc), "making a reorder");
    if (desc)
        dnnl_primitive_desc_destroy(desc);
    return status;
}

static smp_status make_arrays(const smp_convolution_shape *s, const descriptions *all,
                              smp__direction direction, const_dnnl_primitive_desc_t desc,
                              smp__direct *d)
{
    const int64_t places = smp_convolution_places(s) * s->out[SMP_CHANNELS];
    const int64_t pixels = s->in[SMP_CHANNELS] * s->in[SMP_HEIGHT] * s->in[SMP_WIDTH];
    const int64_t each = s->batch / d->chunks * element_bytes(s);
    const int64_t step[ARRAYS] = {each * pixels, 0, each * places}; /* of x, w, y */
    for (int i = 0; i < ARRAYS; i++) {
        const role *r = &ROLES[direction][i];
        const dnnl_memory_desc_t *theirs = &all->row_major[r->array];
        const dnnl_memory_desc_t *ours = dnnl_primitive_desc_query_md(desc, r->query, 0);
        array *a = &d->array[i];
        a->argument = r->argument;
        a->step = step[r->array];
        SMP_TRY(make_memory(d, theirs, &a->theirs));
        if (dnnl_memory_desc_equal(ours, theirs))
            continue;
        SMP_TRY(make_memory(d, ours, &a->ours));
        SMP_TRY(i == RESULT ? make_move(d, ours, theirs, &a->move)
                            : make_move(d, theirs, ours, &a->move));
    }
    return SMP_OK;
}

static smp_status make_primitive(const smp_convolution_shape *s, const descriptions *all,
                                 smp__direction direction, bool bias,
                                 const_dnnl_primitive_desc_t desc, smp__direct *d)
{
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    place_arrays(all->row_major, direction, desc, d);
    SMP_TRY(make_arrays(s, all, direction, desc, d));
    if (bias)
        SMP_TRY(make_memory(d, &all->bias, &d->bias));
    if (scratch && dnnl_memory_desc_get_size(scratch) > 0)
        SMP_TRY(make_memory(d, scratch, &d->scratch));
    return smp__dnnl_check(dnnl_primitive_create(&d->primitive, desc), "making a convolution");
}

/* d->primitive stays NULL if there is none. */
static smp_status choose_and_make(const smp_convolution_shape *s, smp__direction direction,
                                  bool bias, const_dnnl_primitive_attr_t attr, smp__direct *d)
{
    descriptions all;
    dnnl_convolution_desc_t what[2]; /* forward, which the backward ones ask for, and this one */
    dnnl_primitive_desc_t forward = NULL, desc = NULL;
    SMP_TRY(describe_arrays(s, direction, &all));
    SMP_TRY(describe_convolution(&all, SMP__FORWARD, bias, &what[0]));
    SMP_TRY(describe_convolution(&all, direction, bias, &what[1]));
    if (direction != SMP__FORWARD)
        SMP_TRY(
            smp__dnnl_check(dnnl_primitive_desc_create(&forward, &what[0], attr, d->engine, NULL),
                            "describing a convolution"));
    smp_status status =
        find(&all, direction, &what[1], attr, forward, smp__direct_workspace(s), d, &desc);
    if (desc)
        status = make_primitive(s, &all, direction, bias, desc, d);
    if (desc)
        dnnl_primitive_desc_destroy(desc);
    if (forward)
        dnnl_primitive_desc_destroy(forward);
    return status;
}

static smp_status create(const smp_convolution_shape *s, smp__direction direction, bool bias,
                         smp__direct *d)
{
    dnnl_primitive_attr_t attr = NULL;
    SMP_TRY(smp__dnnl_open(&d->engine, &d->stream));
    SMP_TRY(smp__dnnl_check(dnnl_primitive_attr_create(&attr), "making attributes"));
    smp_status status =
        smp__dnnl_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
                        "setting the scratchpad mode");
    d->chunks = s->batch / chunk_samples(s);
    d->sum_elements = direction == SMP__BACKWARD_WEIGHT ? weight_elements(s) : 0;
    if (status == SMP_OK)
        status = choose_and_make(s, direction, bias && direction == SMP__FORWARD, attr, d);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

smp_status smp__direct_create(const smp_convolution_shape *shape, smp__direction direction,
                              bool bias, smp__direct **out)
{
    *out = NULL;
    if (!fits_32_bits(shape))
        return SMP_OK;
    smp__direct *d = calloc(1, sizeof *d);
    if (!d)
        return smp_fail_memory(sizeof *d);
    const int threads = smp__dnnl_limit_threads();
    smp_status status = create(shape, direction, bias, d);
    omp_set_num_threads(threads);
    if (status == SMP_OK && d->primitive)
        *out = d;
    else
        smp__direct_destroy(d);
    return status;
}

static void destroy_memory(dnnl_memory_t memory)
{
    if (memory)
        dnnl_memory_destroy(memory);
}

void smp__direct_destroy(smp__direct *d)
{
    if (!d)
        return;
    for (int i = 0; i < ARRAYS; i++) {
        destroy_memory(d->array[i].theirs);
        destroy_memory(d->array[i].ours);
        if (d->array[i].move)
            dnnl_primitive_destroy(d->array[i].move);
    }
    destroy_memory(d->bias);
    destroy_memory(d->scratch);
    if (d->primitive)
        dnnl_primitive_destroy(d->primitive);
    smp__dnnl_close(d->engine, d->stream);
    free(d);
}

static smp_status point(dnnl_memory_t memory, const void *at)
{
    return smp__dnnl_check(dnnl_memory_set_data_handle(memory, (void *)at), "convolution");
}

static smp_status execute(const smp__direct *d, dnnl_primitive_t what, int n,
                          const dnnl_exec_arg_t *args)
{
    SMP_TRY(smp__dnnl_check(dnnl_primitive_execute(what, d->stream, n, args), "convolution"));
    return smp__dnnl_check(dnnl_stream_wait(d->stream), "convolution");
}

static smp_status move_array(const smp__direct *d, const array *a, bool back)
{
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, back ? a->ours : a->theirs},
                                    {DNNL_ARG_TO, back ? a->theirs : a->ours}};
    return a->move ? execute(d, a->move, 2, args) : SMP_OK;
}

static smp_status convolve(const smp__direct *d)
{
    dnnl_exec_arg_t args[ARRAYS + 2];
    int n = 0;
    for (; n < ARRAYS; n++) {
        const array *a = &d->array[n];
        args[n] = (dnnl_exec_arg_t){a->argument, a->ours ? a->ours : a->theirs};
    }
    if (d->bias)
        args[n++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, d->bias};
    if (d->scratch)
        args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, d->scratch};
    return execute(d, d->primitive, n, args);
}

static smp_status run_chunk(const smp__direct *d, int64_t chunk, const char *const given[2],
                            void *result)
{
    for (int i = FIRST; i <= SECOND; i++) {
        const array *a = &d->array[i];
        if (chunk > 0 && a->step == 0)
            continue;
        SMP_TRY(point(a->theirs, given[i] + chunk * a->step));
        SMP_TRY(move_array(d, a, false));
    }
    SMP_TRY(point(d->array[RESULT].theirs, result));
    SMP_TRY(convolve(d));
    return move_array(d, &d->array[RESULT], true);
}

static smp_status run_chunks(const smp__direct *d, const char *const given[2], const float *bias,
                             char *result, char *workspace)
{
    for (int i = 0; i < ARRAYS; i++)
        if (d->array[i].ours)
            SMP_TRY(point(d->array[i].ours, workspace + d->array[i].place));
    if (d->bias)
        SMP_TRY(point(d->bias, bias));
    if (d->scratch)
        SMP_TRY(point(d->scratch, workspace + d->scratch_place));
    for (int64_t chunk = 0; chunk < d->chunks; chunk++) {
        char *part = workspace + d->sum_place;
        char *to = d->sum_elements > 0 ? part : result + chunk * d->array[RESULT].step;
        SMP_TRY(run_chunk(d, chunk, given, to));
        if (d->sum_elements > 0)
            smp__accumulate((float *)result, (const float *)part, d->sum_elements);
    }
    return SMP_OK;
}

smp_status smp__direct_run(smp__direct *d, const void *first, const void *second, const float *bias,
                           void *result, char *workspace)
{
    const int threads = smp__dnnl_limit_threads();
    smp_status status =
        run_chunks(d, (const char *const[2]){first, second}, bias, result, workspace);
    omp_set_num_threads(threads);
    return status;
}

/* Predictions of smp-run: tools/run/prediction.h. */
#include "tools/run/prediction.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/run/batches.h"
#include "tools/run/npy_head.h"
#include "graph/base/text.h"

static const char *const forms[] = {
    [SMP_OUTPUT_CONCAT] = "concat", [SMP_OUTPUT_STACK] = "stack", [SMP_OUTPUT_MEAN] = "mean"};
enum { FORMS = sizeof forms / sizeof *forms };

static smp_status parse_form(const char *text, smp_output *out)
{
    for (int i = 0; i < FORMS; i++)
        if (!text || strcmp(text, forms[i]) == 0) {
            *out = (smp_output)i;
            return SMP_OK;
        }
    return smp_fail_choice((smp_where){0}, "--predict-reduce", text, forms, FORMS);
}

static smp_status check_samples(const smp__trainer *t)
{
    const int64_t n = smp_data_samples(t->predict_data), batch = smp_microbatch_samples(t->job);
    if (t->predict_form == SMP_OUTPUT_CONCAT || n % batch == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "--predict-reduce %s: %" PRId64
                    " samples are no whole micro-batches of %" PRId64 " samples",
                    forms[t->predict_form], n, batch);
}

smp_status smp__prediction_open(smp__trainer *t)
{
    const smp_train_options *o = t->options;
    smp_status status = parse_form(o->predict_reduce, &t->predict_form);
    if (status == SMP_OK)
        status = smp_tensor_describe(t->job, o->predict_tensor, &t->predict_tensor);
    if (status == SMP_OK && o->n_predict_data == 0)
        status = smp_fail(SMP_ERR_INPUT, "--predict: no samples: give --predict-data SOURCE");
    SMP_TRY(smp_agree(t->job, status));
    SMP_TRY(smp__batches_open(t, o->predict_data, o->n_predict_data, false, 1, &t->predict_data));
    return smp_agree(t->job, check_samples(t));
}

/* Values of one batch on their way to the file; of rank 0, else all NULL. */
typedef struct output {
    smp_writer *file;
    void *values; /* of the largest batch */
    double *sum;  /* of a mean: of a micro-batch */
    int64_t rows; /* of a micro-batch */
    int64_t microbatches;
} output;

static int64_t rows_of(const smp__trainer *t, int64_t samples)
{
    const int64_t batch = smp_microbatch_samples(t->job);
    return t->predict_tensor.per_microbatch ? (samples + batch - 1) / batch : samples;
}

/* The dimensions before those of a row. */
static smp_status write_head(const smp__trainer *t, output *out)
{
    const smp_tensor_description *d = &t->predict_tensor;
    const int64_t n = smp_data_samples(t->predict_data), batch = smp_microbatch_samples(t->job);
    int64_t dim[SMP__NPY_DIMS], rows = 0;
    int n_dim = 0;
    for (int64_t at = 0; at < n; at += t->global_batch)
        rows += rows_of(t, smp__batch_in_order(t, t->predict_data, at).samples);
    if (t->predict_form == SMP_OUTPUT_CONCAT || d->per_microbatch)
        dim[n_dim++] = rows;
    else if (t->predict_form == SMP_OUTPUT_STACK)
        dim[n_dim++] = n / batch;
    if (t->predict_form != SMP_OUTPUT_CONCAT && !d->per_microbatch)
        dim[n_dim++] = batch;
    if (t->predict_form == SMP_OUTPUT_MEAN && d->per_microbatch)
        n_dim = 0;
    for (int i = 0; i < d->n_dim; i++)
        dim[n_dim++] = d->dim[i];
    const bool is_int = d->is_int && t->predict_form != SMP_OUTPUT_MEAN;
    return smp__npy_write_head(out->file, is_int ? "<i4" : "<f4", dim, n_dim);
}

static smp_status open_output(const smp__trainer *t, output *out)
{
    const size_t elements = (size_t)t->predict_tensor.elements;
    out->rows = rows_of(t, smp_microbatch_samples(t->job));
    if (!t->prints)
        return SMP_OK;
    SMP_TRY(smp_writer_open(t->options->predict, &out->file));
    out->values = malloc((size_t)rows_of(t, t->global_batch) * elements * 4);
    out->sum = calloc((size_t)out->rows * elements, sizeof *out->sum);
    if (!out->values || !out->sum)
        return smp_fail_memory((size_t)rows_of(t, t->global_batch) * elements * 4);
    return write_head(t, out);
}

static smp_status add_batch(const smp__trainer *t, output *out, int64_t samples)
{
    const int64_t rows = rows_of(t, samples), elements = t->predict_tensor.elements;
    if (!out->file)
        return SMP_OK;
    if (t->predict_form != SMP_OUTPUT_MEAN)
        return smp_writer_add(out->file, out->values, (size_t)(rows * elements) * 4);
    for (int64_t i = 0; i < rows * elements; i++)
        out->sum[i % (out->rows * elements)] += t->predict_tensor.is_int
                                                    ? (double)((const int32_t *)out->values)[i]
                                                    : (double)((const float *)out->values)[i];
    out->microbatches += rows / out->rows;
    return SMP_OK;
}

static smp_status write_mean(const smp__trainer *t, output *out)
{
    float *mean = out->values;
    const int64_t n = out->rows * t->predict_tensor.elements;
    if (!out->file || t->predict_form != SMP_OUTPUT_MEAN)
        return SMP_OK;
    for (int64_t i = 0; i < n; i++)
        mean[i] = (float)(out->sum[i] / (double)out->microbatches);
    return smp_writer_add(out->file, mean, (size_t)n * sizeof *mean);
}

/* A failure to write is agreed on at the end of a batch, so that nobody waits for rank 0. */
static smp_status write_batches(smp__trainer *t, output *out)
{
    for (smp__batch b = smp__batch_in_order(t, t->predict_data, 0); b.samples > 0;
         b = smp__batch_in_order(t, t->predict_data, b.first + b.samples)) {
        smp_status status = smp__read_batch(t, t->predict_data, b);
        if (status == SMP_OK)
            status = smp_predict(t->job, (const void *const *)t->buffer, b.samples,
                                 t->options->predict_tensor, SMP_OUTPUT_CONCAT, out->values);
        *t->job_broken = status != SMP_OK;
        SMP_TRY(status);
        SMP_TRY(smp_agree(t->job, add_batch(t, out, b.samples)));
    }
    return smp_agree(t->job, write_mean(t, out));
}

smp_status smp__prediction_write(smp__trainer *t)
{
    output out = {0};
    smp_status status = smp_agree(t->job, open_output(t, &out));
    if (status == SMP_OK)
        status = write_batches(t, &out);
    if (out.file)
        status = smp_writer_close(out.file, status);
    free(out.values);
    free(out.sum);
    return *t->job_broken ? status : smp_agree(t->job, status);
}

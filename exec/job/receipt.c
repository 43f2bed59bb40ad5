/* What a run was told: exec/job/receipt.h. */
#include "exec/job/receipt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/job/choose_device.h"
#include "exec/job/setup.h"
#include "exec/state/handle.h"
#include "exec/state/progress.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "schedule/plan/split_patterns.h"

enum { VALUE_BYTES = 256 };

/* The value after a word, cut to the buffer. */
static bool find_value(const char *receipt, const char *word, char value[VALUE_BYTES])
{
    size_t length;
    const char *found = smp__receipt_value(receipt, word, &length);
    if (found)
        snprintf(value, VALUE_BYTES, "%.*s", (int)length, found);
    return found != NULL;
}

/* Do both say it, and not the same? */
static bool is_other(const char *one, const char *other, const char *word, char value[VALUE_BYTES],
                     char other_value[VALUE_BYTES])
{
    return find_value(one, word, value) && find_value(other, word, other_value) &&
           strcmp(value, other_value) != 0;
}

static uint64_t hash_splitting(const smp_splitting *splitting)
{
    uint64_t hash = 0;
    for (int32_t i = 0; i < splitting->n_entry; i++) {
        hash = smp_hash(hash, splitting->entry[i].op, strlen(splitting->entry[i].op) + 1);
        hash = smp_hash(hash, splitting->entry[i].as, strlen(splitting->entry[i].as) + 1);
    }
    for (int32_t i = 0; i < splitting->n_fewer; i++) {
        hash = smp_hash(hash, splitting->fewer[i].op, strlen(splitting->fewer[i].op) + 1);
        hash = smp_hash(hash, &splitting->fewer[i].devices, sizeof splitting->fewer[i].devices);
    }
    return hash;
}

/* How ops are split, in as few lines as patterns allow. */
static smp_status put_splits(const smp *s, smp_text *text)
{
    smp_splitting few = {0};
    if (s->plan->splitting.n_fewer > 0)
        return SMP_OK; /* patterns do not say which stages have which groups */
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? SMP_OK : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = smp_splitting_shorten(&s->plan->splitting, smp_graph_whole(s->graph), arena, &few);
    for (int32_t i = 0; status == SMP_OK && i < few.n_entry; i++)
        smp_text_append(text, "split %s:%s\n", few.entry[i].op, few.entry[i].as);
    smp_arena_destroy(arena);
    return status;
}

static void add_bits(smp_text *text, const smp *s)
{
    const smp_plan *plan = s->plan;
    smp_text_append(text, "microbatch-size %" PRId64 "\ngradient-blocks %d\ntensor %d\n",
                    plan->microbatch_size, plan->gradient_blocks, smp_plan_tensor(plan));
    smp_text_append(text, "splitting %016" PRIx64 "\n", hash_splitting(&plan->splitting));
    smp_text_append(text, "precision %s\nstate-precision %s\ngradient-wire %s\n",
                    smp_precision_name(s->target->precision),
                    s->target->bf16_states ? "bf16" : "fp32",
                    smp_wire_is_bf16(plan->sharding) ? "bf16" : "fp32");
}

static int compare_choices(const void *left, const void *right)
{
    const smp_gemm_choice *a = left, *b = right;
    return strcmp(a->product, b->product);
}

/* "product NAME: ALGORITHM"; a library's bytes, after a colon, as a hash. */
static void put_choice(const smp_gemm_choice *choice, smp_text *text)
{
    const size_t words = strcspn(choice->algorithm, ":");
    const char *bytes = choice->algorithm + words;
    smp_text_append(text, "product %s: %.*s", choice->product, (int)words, choice->algorithm);
    if (*bytes)
        smp_text_append(text, " (%08x)", (unsigned)smp_hash(0, bytes, strlen(bytes)));
    smp_text_append(text, "\n");
}

/* By name, which all ranks and all pipelines have in one order; attention's are the first. */
static smp_status list_products(const smp *s, smp_arena *arena, smp_text *text)
{
    const smp_gemms *products = s->device->products(s->device_context);
    smp_gemm_choices used = {0};
    SMP_TRY(smp_gemms_choices(products, "", arena, &used));
    smp_gemm_choice *sorted = SMP_ARENA_NEW(arena, smp_gemm_choice, (size_t)used.n);
    if (!sorted)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < used.n; i++)
        sorted[i] = used.choice[i];
    qsort(sorted, (size_t)used.n, sizeof *sorted, compare_choices);
    smp_text_append(text, "library %s\n%s", used.library, s->setup->found->ways);
    for (int i = 0; i < used.n; i++)
        put_choice(&sorted[i], text);
    return SMP_OK;
}

/* As many whole lines as fit so many bytes. */
static smp_status put_products(const smp *s, size_t room, smp_text *text)
{
    smp_text lines = {0};
    if (!s->device->products)
        return SMP_OK;
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? list_products(s, arena, &lines) : SMP_ERR_NO_MEMORY;
    for (const char *at = lines.data, *end; at && (end = strchr(at, '\n')); at = end + 1) {
        const size_t length = (size_t)(end + 1 - at);
        if (length > room)
            break;
        smp_text_append(text, "%.*s", (int)length, at);
        room -= length;
    }
    smp_text_free(&lines);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp__receipt_make(smp *s, const char *options, const smp_data *data)
{
    smp_text text = {0}, splits = {0};
    smp_status status = put_splits(s, &splits);
    smp_text_append(&text, "%sbatch %" PRId64 "\n", options ? options : "",
                    smp__job_global_batch(s));
    add_bits(&text, s);
    if (status == SMP_OK && data) {
        int64_t bytes = 0;
        uint64_t hash = 0;
        status = smp_data_mark(data, &bytes, &hash);
        smp_text_append(&text, "data %" PRId64 " %016" PRIx64 "\n", bytes, hash);
    }
    if (status == SMP_OK && text.length + splits.length < SMP__RECEIPT_BYTES)
        smp_text_append(&text, "%s", splits.data ? splits.data : ""); /* else the hash alone */
    if (status == SMP_OK && text.length < SMP__RECEIPT_BYTES)
        status = put_products(s, SMP__RECEIPT_BYTES - 1 - text.length, &text);
    if (status == SMP_OK && (text.failed || splits.failed))
        status = SMP_ERR_NO_MEMORY;
    if (status == SMP_OK && text.length >= SMP__RECEIPT_BYTES)
        status = smp_fail(SMP_ERR_INPUT,
                          "the options of training take %zu bytes, a checkpoint has room for %zu",
                          text.length, (size_t)SMP__RECEIPT_BYTES - 1);
    if (status == SMP_OK)
        memcpy(smp__progress_receipts(s->progress)->own, text.data, text.length + 1);
    smp_text_free(&text);
    smp_text_free(&splits);
    return status;
}

static void say_bits(const smp__receipts *of)
{
    static const char *const words[] = {"microbatch-size", "gradient-blocks", "tensor",
                                        "splitting",       "precision",       "state-precision",
                                        "gradient-wire",   "library"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char had[VALUE_BYTES], has[VALUE_BYTES];
        if (!is_other(of->loaded, of->own, words[i], had, has))
            continue;
        if (strcmp(words[i], "splitting") == 0)
            fprintf(stderr, "smp-run: other splitting than the checkpoint's: bits will differ\n");
        else
            fprintf(stderr, "smp-run: %s %s, the run that is resumed had %s: bits will differ\n",
                    words[i], has, had);
    }
}

/* The algorithm of a product in the lines of a receipt; NULL: it does not say. */
static const char *find_product(const char *receipt, const char *product, size_t name,
                                size_t *length)
{
    for (const char *at = receipt; (at = smp__receipt_value(at, "product", length)); at += *length)
        if (*length > name + 2 && strncmp(at, product, name + 2) == 0) {
            *length -= name + 2;
            return at + name + 2;
        }
    return NULL;
}

/* Products that both name, and by other algorithms: the first, and how many more. */
static void say_products(const smp__receipts *of)
{
    size_t length, has_length;
    int others = 0;
    char first[3 * VALUE_BYTES] = "";
    for (const char *at = of->loaded; (at = smp__receipt_value(at, "product", &length));
         at += length) {
        const char *colon = strstr(at, ": ");
        if (!colon || colon >= at + length)
            continue;
        const size_t name = (size_t)(colon - at), had_length = length - name - 2;
        const char *has = find_product(of->own, at, name, &has_length);
        if (!has || (has_length == had_length && strncmp(has, colon + 2, had_length) == 0))
            continue;
        if (others++ == 0)
            snprintf(first, sizeof first, "%.*s: %.*s, the run that is resumed had %.*s", (int)name,
                     at, (int)has_length, has, (int)had_length, colon + 2);
    }
    if (others > 1)
        fprintf(stderr, "smp-run: %s (the first of %d such products): bits will differ\n", first,
                others);
    else if (others == 1)
        fprintf(stderr, "smp-run: %s: bits will differ\n", first);
}

smp_status smp__receipt_compare(const smp *s, bool another_batch)
{
    const bool prints = s->comm->world_rank == 0;
    const smp__receipts *of = smp__progress_receipts(s->progress);
    const char *const had_all = of->loaded, *const has_all = of->own;
    char had[VALUE_BYTES], has[VALUE_BYTES];
    if (is_other(had_all, has_all, "batch", had, has)) {
        if (!another_batch)
            return smp_fail(SMP_ERR_INPUT,
                            "the plan has a global batch of %s, the run that is resumed had %s: "
                            "plan with that many samples, or give --resume-changed",
                            has, had);
        if (prints)
            fprintf(stderr, "smp-run: global batch %s, the run that is resumed had %s\n", has, had);
    }
    if (prints)
        say_bits(of);
    if (prints)
        say_products(of);
    if (prints && is_other(had_all, has_all, "data", had, has))
        fprintf(stderr, "smp-run: --data is not what the run that is resumed had\n");
    return SMP_OK;
}

/* All weights in safetensors, in one file or in a folder of several with an index, under the names
 * of the model or of another program.
 *
 * Rank 0 writes tensors in the order of the model, which decides every byte, so that the plan does
 * not show. What others have comes to it piece by piece: each rank needs memory for two, and rank 0
 * for a block of the columns of a matrix that is written transposed, which takes a pass over it.
 * No file of a folder gets its name before all of them are on the disk. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/state/device_wait.h"
#include "exec/state/shards.h"
#include "exec/state/updates.h"
#include "exec/state/drift.h"
#include "exec/state/weights.h"
#include "graph/base/text.h"
#include "graph/safetensors/name_family.h"
#include "graph/safetensors/safetensors_write.h"

enum { PIECE_ELEMENTS = 1 << 18, BLOCK_ELEMENTS = 1 << 22 };
static const int64_t file_bytes = 5000000000;

/* What is written, on every rank, and what a rank needs for it. */
typedef struct exporter {
    smp *s;
    const char *path;
    bool folder;
    smp_arena *arena;
    smp_written_source *source; /* [n] tensors */
    smp_written_tensor *tensor; /* [n] the same for the head */
    int32_t n;
    int32_t *begin; /* [n_file + 1] tensors of a file */
    int32_t n_file;
    char beside[24];       /* before the names of files until the set is there; "": nothing is */
    smp_writer **file;     /* [n_file] rank 0's; NULL: not begun */
    smp_writer *writer;    /* the one in progress */
    smp__holding *holding; /* of the weight in progress */
    float *window;         /* rank 0's: PIECE_ELEMENTS of the whole weight */
    float *slice;          /* ... or fewer of them that one rank has */
    float *block;          /* rank 0's: columns of a tensor that is transposed; else NULL */
    smp_status status;     /* what failed here. It does not stop it: others count on every piece */
} exporter;

/* Which tensors go into which file. */
static smp_status deal_files(exporter *e, int64_t most)
{
    int64_t bytes = 0;
    e->begin = SMP_ARENA_NEW(e->arena, int32_t, (size_t)e->n + 2);
    if (!e->begin)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < e->n; i++) {
        const int64_t own = e->source[i].elements * (int64_t)sizeof(float);
        if (e->folder && bytes > 0 && (own > most || bytes > most - own)) {
            e->begin[++e->n_file] = i;
            bytes = 0;
        }
        bytes += own;
    }
    e->begin[++e->n_file] = e->n;
    return SMP_OK;
}

static smp_status find_tensors(exporter *e, const smp_weights_options *options,
                               smp_name_rules *rules, smp_matched_weight **weight)
{
    SMP_TRY(smp_name_rules_open(rules, options->map, options->names));
    SMP_TRY(smp_graph_list_weights(smp_graph_whole(e->s->graph), weight));
    SMP_TRY(smp_weights_written(rules, *weight, smp_graph_whole(e->s->graph)->n_param, e->arena,
                                &e->source, &e->n));
    e->tensor = SMP_ARENA_NEW(e->arena, smp_written_tensor, (size_t)e->n);
    if (!e->tensor)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < e->n; i++)
        e->tensor[i] = (smp_written_tensor){e->source[i].name, e->source[i].shape, NULL};
    return deal_files(e, options->file_bytes > 0 ? options->file_bytes : file_bytes);
}

static smp_status plan_export(exporter *e, const smp *s, const char *path,
                              const smp_weights_options *options)
{
    const size_t length = strlen(path);
    smp_name_rules rules = {0};
    smp_matched_weight *weight = NULL;
    *e = (exporter){.s = (smp *)s, .path = path};
    e->folder = length > 0 && path[length - 1] == '/';
    if (options->file_bytes != 0 && (options->file_bytes < 0 || !e->folder))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: a limit of %" PRId64 " bytes for a file: expected a folder, `%s/`",
                        path, options->file_bytes, path);
    if (!(e->arena = smp_arena_create()))
        return smp_fail_memory(1);
    const smp_status status = find_tensors(e, options, &rules, &weight);
    free(weight);
    smp_name_rules_free(&rules);
    return status;
}

/* Elements of a weight: `rows` ranges of `length`, `stride` apart, the first from `begin` on. */
typedef struct rows_of {
    int64_t begin, rows, length, stride;
} rows_of;

/* Where they go: the range of a row from to[row * length] on. */
static smp__range row_slice(const smp__holding *h, const rows_of *from, int64_t row)
{
    const int64_t begin = from->begin + row * from->stride;
    return smp__holding_slice(h, begin, begin + from->length);
}

/* What a holding has of rows, PIECE_ELEMENTS at most, to rank 0's `to`, [rows][length]. */
static smp_status hand_rows(exporter *e, int32_t param, const smp__holding *h, rows_of from,
                            float *to)
{
    smp *s = e->s;
    int64_t n = 0;
    for (int64_t row = 0; row < from.rows; row++) {
        const smp__range part = row_slice(h, &from, row);
        const int64_t own = part.end - part.begin;
        if (own > 0 && s->comm->world_rank == h->rank && e->status == SMP_OK)
            e->status = smp__copy_out(s, e->slice + n,
                                      smp__weight_at(s, smp__job_find_param(s, param), part.begin),
                                      own * (int64_t)sizeof(float));
        n += own;
    }
    if (n == 0)
        return SMP_OK;
    SMP_TRY(smp__comm_hand(s->comm, e->slice, n * (int64_t)sizeof(float), h->rank, 0));
    n = 0;
    for (int64_t row = 0; row < from.rows && s->comm->world_rank == 0 && to; row++) {
        const smp__range part = row_slice(h, &from, row);
        smp__runs_put(h->runs, e->slice + n, part.begin, part.end - part.begin,
                      to + row * from.length, from.begin + row * from.stride);
        n += part.end - part.begin;
    }
    return SMP_OK;
}

static smp_status find_holdings(exporter *e, const smp_written_piece *piece, int32_t *param, int *n)
{
    const smp_graph *whole = smp_graph_whole(e->s->graph);
    *param = smp_graph_find_param(e->s->graph, whole->param[piece->weight].name);
    return smp__find_holdings(e->s, *param, e->holding, n);
}

static void add_values(exporter *e, const float *values, int64_t n)
{
    if (e->s->comm->world_rank == 0 && e->status == SMP_OK)
        e->status = smp_writer_add(e->writer, values, (size_t)n * sizeof(float));
}

/* Elements of a weight to the file. */
static smp_status write_piece(exporter *e, const smp_written_piece *piece)
{
    int32_t param = -1;
    int n = 0;
    SMP_TRY(find_holdings(e, piece, &param, &n));
    for (int64_t at = piece->begin, end; at < piece->end; at = end) {
        end = piece->end - at < PIECE_ELEMENTS ? piece->end : at + PIECE_ELEMENTS;
        const rows_of from = {at, 1, end - at, 0};
        for (int i = 0; i < n; i++)
            SMP_TRY(hand_rows(e, param, &e->holding[i], from, e->window));
        add_values(e, e->window, end - at);
    }
    return SMP_OK;
}

/* Reads the columns from `first` on, `width` of `columns`, of the rows of a weight, into `to`. */
static smp_status read_columns(exporter *e, const smp_written_piece *piece, int64_t columns,
                               int64_t first, int64_t width, float *to)
{
    const int64_t rows = (piece->end - piece->begin) / columns, most = PIECE_ELEMENTS / width;
    int32_t param = -1;
    int n = 0;
    SMP_TRY(find_holdings(e, piece, &param, &n));
    for (int64_t row = 0; row < rows; row += most) {
        const rows_of from = {piece->begin + row * columns + first,
                              rows - row < most ? rows - row : most, width, columns};
        for (int i = 0; i < n; i++)
            SMP_TRY(hand_rows(e, param, &e->holding[i], from, to ? to + row * width : NULL));
    }
    return SMP_OK;
}

/* The block of rank 0, [rows][width], columns first. */
static void write_block(exporter *e, int64_t rows, int64_t width)
{
    int64_t n = 0;
    for (int64_t c = 0; c < width; c++)
        for (int64_t r = 0; r < rows; r++) {
            e->window[n++] = e->block[r * width + c];
            if (n == PIECE_ELEMENTS || (c == width - 1 && r == rows - 1)) {
                add_values(e, e->window, n);
                n = 0;
            }
        }
}

/* So many columns of a matrix are a block. */
static int64_t block_width(const smp_written_source *t)
{
    const int64_t columns = t->shape.dim[0], rows = t->shape.dim[1];
    int64_t width = BLOCK_ELEMENTS / rows;
    width = width < PIECE_ELEMENTS ? width : PIECE_ELEMENTS;
    width = width < columns ? width : columns;
    return width > 0 ? width : 1;
}

static smp_status write_transposed(exporter *e, const smp_written_source *t)
{
    const int64_t columns = t->shape.dim[0], rows = t->shape.dim[1], most = block_width(t);
    const size_t bytes = (size_t)(rows * most) * sizeof(float);
    smp_status status = SMP_OK;
    if (e->s->comm->world_rank == 0 && !(e->block = malloc(bytes + 1)))
        e->status = e->status == SMP_OK ? smp_fail_memory(bytes) : e->status;
    for (int64_t first = 0; first < columns && status == SMP_OK; first += most) {
        const int64_t width = columns - first < most ? columns - first : most;
        float *at = e->block;
        for (int i = 0; i < t->n_piece && status == SMP_OK; i++) {
            status = read_columns(e, &t->piece[i], columns, first, width, at);
            if (at)
                at += (t->piece[i].end - t->piece[i].begin) / columns * width;
        }
        if (status == SMP_OK && e->block)
            write_block(e, rows, width);
    }
    if (!e->s->comm->failed)
        free(e->block);
    e->block = NULL;
    return status;
}

static smp_status write_tensor(exporter *e, const smp_written_source *t)
{
    smp_status status = SMP_OK;
    if (t->transposed)
        status = write_transposed(e, t);
    for (int i = 0; i < t->n_piece && status == SMP_OK && !t->transposed; i++)
        status = write_piece(e, &t->piece[i]);
    return status == SMP_OK ? smp__comm_agree(e->s->comm, e->status) : status;
}

/* The name of file `number` in the folder, for good or for now. */
static const char *file_name(exporter *e, int32_t number, const char *beside)
{
    return e->n_file == 1
               ? "model.safetensors"
               : smp_arena_printf(e->arena, "%smodel-%05" PRId32 "-of-%05" PRId32 ".safetensors",
                                  beside, number + 1, e->n_file);
}

static const char *file_path(exporter *e, const char *name)
{
    return e->folder && name ? smp_arena_printf(e->arena, "%s%s", e->path, name) : e->path;
}

/* Are names taken that an index may have? Then the new files get others first. */
static smp_status choose_names(exporter *e)
{
    uint64_t id;
    bool taken = false;
    for (int32_t i = 0; e->folder && e->n_file > 1 && i < e->n_file && !taken; i++) {
        const char *path = file_path(e, file_name(e, i, ""));
        if (!path)
            return SMP_ERR_NO_MEMORY;
        taken = access(path, F_OK) == 0;
    }
    if (taken && getrandom(&id, sizeof id, 0) != sizeof id)
        return smp_fail(SMP_ERR_FAILED, "%s: no random number: %s", e->path, strerror(errno));
    if (taken)
        snprintf(e->beside, sizeof e->beside, "%016" PRIx64 ".", id);
    return SMP_OK;
}

static smp_status open_file(exporter *e, int32_t number)
{
    smp_text head = {0};
    const char *name = file_name(e, number, e->beside), *path = file_path(e, name);
    if (e->s->comm->world_rank != 0)
        return SMP_OK;
    if (!name || !path)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_writer_open(path, &e->file[number]));
    e->writer = e->file[number];
    smp_status status = smp_safetensors_head(path, e->tensor + e->begin[number],
                                             e->begin[number + 1] - e->begin[number], &head);
    if (status == SMP_OK)
        status = smp_writer_add(e->writer, head.data, head.length);
    smp_text_free(&head);
    return status;
}

static smp_status write_file(exporter *e, int32_t number)
{
    smp_status status = smp__comm_agree(e->s->comm, open_file(e, number));
    for (int32_t i = e->begin[number]; i < e->begin[number + 1] && status == SMP_OK; i++)
        status = write_tensor(e, &e->source[i]);
    if (status == SMP_OK && e->writer)
        status = smp_writer_finish(e->writer);
    return smp__comm_agree(e->s->comm, status);
}

/* All files get their names, or none of them is there. */
static smp_status name_files(exporter *e, smp_status status)
{
    for (int32_t i = 0; e->file && i < e->n_file; i++)
        if (e->file[i])
            status = smp_writer_close(e->file[i], status);
    return status;
}

static smp_status remove_file(exporter *e, const char *name)
{
    const char *path = file_path(e, name);
    if (!path)
        return SMP_ERR_NO_MEMORY;
    if (unlink(path) != 0 && errno != ENOENT)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot remove: %s", path, strerror(errno));
    return SMP_OK;
}

/* The index, on the disk, not yet under its name: what is there stays if it fails. */
static smp_status begin_index(exporter *e, const char *beside, smp_writer **out)
{
    smp_text index = {0};
    const char **file = SMP_ARENA_NEW(e->arena, const char *, (size_t)e->n);
    const char *path = file_path(e, "model.safetensors.index.json");
    for (int32_t number = 0; file && number < e->n_file; number++) {
        const char *name = file_name(e, number, beside);
        for (int32_t i = e->begin[number]; i < e->begin[number + 1]; i++)
            file[i] = name;
        file = name ? file : NULL;
    }
    if (!file || !path)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_safetensors_index(e->tensor, file, e->n, &index));
    smp_status status = smp_writer_open(path, out);
    if (status == SMP_OK)
        status = smp_writer_add(*out, index.data, index.length);
    if (status == SMP_OK)
        status = smp_writer_finish(*out);
    smp_text_free(&index);
    return status;
}

/* "0123456789abcdef.model-00001-of-00002.safetensors", or one that a killed export was writing. */
static bool is_left(const char *name, const char *but)
{
    const bool beside = strspn(name, "0123456789abcdef") == 16 && name[16] == '.';
    int number, of, used = 0;
    if (beside && but[0] != '\0' && strncmp(name, but, strlen(but)) == 0)
        return false;
    return beside &&
           sscanf(name + 17, "model-%5d-of-%5d.safetensors%n", &number, &of, &used) == 2 &&
           used > 0 && name[17 + used] == '\0';
}

/* What killed exports left: no index names it now. but: names that begin so stay; "": none. */
static void sweep_folder(exporter *e, const char *but)
{
    DIR *d = opendir(e->path);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        char target[NAME_MAX + 1];
        const char *end = strstr(entry->d_name, ".safetensors.");
        const int length = end ? (int)(end - entry->d_name + 12) : 0;
        snprintf(target, sizeof target, "%.*s", length, entry->d_name);
        if (is_left(entry->d_name, but))
            (void)remove_file(e, entry->d_name);
        else if (length > 0 && (is_left(target, "") || strncmp(target, "model", 5) == 0))
            smp_writer_sweep(file_path(e, target));
    }
    if (d)
        closedir(d);
    smp_writer_sweep(file_path(e, "model.safetensors.index.json"));
}

/* A second name for a file, in place of whatever has it. */
static bool link_over(exporter *e, const char *from, const char *to)
{
    const char *beside = smp_arena_printf(e->arena, "%s.%ld-0.tmp", to ? to : "", (long)getpid());
    if (!from || !to || !beside || link(from, beside) != 0)
        return false;
    const bool done = rename(beside, to) == 0;
    unlink(beside); /* which a rename to the same file leaves */
    return done;
}

/* The set has names for now, which its index has: it gets those for good. Where files cannot have
 * two names it keeps them. */
static smp_status settle_names(exporter *e)
{
    smp_writer *index = NULL;
    for (int32_t i = 0; i < e->n_file; i++)
        if (!link_over(e, file_path(e, file_name(e, i, e->beside)),
                       file_path(e, file_name(e, i, ""))))
            return SMP_OK;
    smp_status status = begin_index(e, "", &index);
    status = index ? smp_writer_close(index, status) : status;
    if (status == SMP_OK)
        e->beside[0] = '\0';
    return status;
}

/* At every moment what readers look for first, a single file, then the index, is there as a whole,
 * old or new: files that an index names are replaced when no index names them. */
static smp_status replace_set(exporter *e, smp_status status)
{
    smp_writer *index = NULL;
    if (!e->folder || e->s->comm->world_rank != 0)
        return name_files(e, status);
    if (status == SMP_OK && e->n_file > 1)
        status = begin_index(e, e->beside, &index);
    status = name_files(e, status);
    if (index)
        status = smp_writer_close(index, status);
    if (status == SMP_OK)
        status =
            remove_file(e, e->n_file > 1 ? "model.safetensors" : "model.safetensors.index.json");
    if (status == SMP_OK && e->beside[0] != '\0')
        status = settle_names(e);
    if (status == SMP_OK)
        status = smp__checkpoint_folder_sync(e->path);
    if (status == SMP_OK)
        sweep_folder(e, e->beside);
    return status;
}

static smp_status take_memory(exporter *e, size_t holdings, void **memory)
{
    const size_t bytes = holdings + 2 * PIECE_ELEMENTS * sizeof(float);
    e->file = SMP_ARENA_NEW(e->arena, smp_writer *, (size_t)e->n_file);
    if (!e->file)
        return SMP_ERR_NO_MEMORY;
    *memory = malloc(bytes);
    return *memory ? SMP_OK : smp_fail_memory(bytes);
}

static smp_status write_files(exporter *e)
{
    const size_t holdings = (size_t)smp__most_holdings(e->s) * sizeof(smp__holding);
    void *memory = NULL;
    smp_status status = take_memory(e, holdings, &memory);
    if (status == SMP_OK && e->folder && e->s->comm->world_rank == 0)
        status = smp__checkpoint_folder_make(e->path);
    if (status == SMP_OK && e->s->comm->world_rank == 0)
        status = choose_names(e);
    status = smp__comm_agree(e->s->comm, status);
    if (status == SMP_OK) {
        e->holding = memory;
        e->window = (float *)(void *)((char *)memory + holdings);
        e->slice = e->window + PIECE_ELEMENTS;
    }
    for (int32_t i = 0; i < e->n_file && status == SMP_OK; i++)
        status = write_file(e, i);
    const smp_status made = replace_set(e, status);
    if (status == SMP_OK)
        status = smp__comm_agree(e->s->comm, made);
    free(memory);
    return status;
}

smp_status smp_export_weights_as(smp *s, const char *path, const smp_weights_options *options)
{
    static const smp_weights_options none = {0};
    exporter e;
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_export_weights: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    SMP_TRY(smp__updates_settle(s));
    smp__place_doing(s->place, "exporting the weights");
    smp_status status =
        smp__comm_agree(s->comm, plan_export(&e, s, path, options ? options : &none));
    if (status == SMP_OK)
        status = write_files(&e);
    smp_arena_destroy(e.arena);
    return smp__job_leave(s, status);
}

smp_status smp_export_weights(smp *s, const char *path)
{
    return smp_export_weights_as(s, path, NULL);
}

smp_status smp__export_check(const smp *s, const char *path, const smp_weights_options *options)
{
    exporter e;
    smp_status status = plan_export(&e, s, path, options);
    if (status == SMP_OK && e.folder)
        status = smp__checkpoint_folder_make(path);
    smp_arena_destroy(e.arena);
    return status;
}

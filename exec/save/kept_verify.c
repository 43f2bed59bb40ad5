/* Damage in places; see the header. Whatever is read has a hash beside it: pieces of weights and
 * states, numbers that are kept, a program's own state, the header; the head is a function of the
 * model. */
#include "exec/save/kept_verify.h"

#include <stdlib.h>

#include "exec/save/keep_state.h"

/* One place, as far as it is looked at. */
typedef struct looking {
    const smp_graph *whole;
    const smp__checkpoint_header *says; /* what the state's header says of its form */
    const smp__spans *spans;            /* that are there */
    int file;
    const char *path;
    float *piece; /* [SMP_PIECE_ELEMENTS] */
    smp__spans *bad;
} looking;

static smp_status look_at_piece(const looking *l, int32_t param, int k, int64_t piece)
{
    const int64_t elements = l->whole->param[param].elements, first = piece * SMP_PIECE_ELEMENTS;
    const int64_t n =
        elements - first < SMP_PIECE_ELEMENTS ? elements - first : (int64_t)SMP_PIECE_ELEMENTS;
    const int64_t at =
        l->says->at + smp__checkpoint_values_at(l->whole, param, l->says->states, k) + 4 * first;
    const int64_t hash_at = l->says->at +
                            smp__checkpoint_hashes_at(l->whole, param, l->says->states, k) +
                            piece * (int64_t)sizeof(uint64_t);
    uint64_t stored, found;
    if (!smp__spans_cover(l->spans, at, at + 4 * n) ||
        !smp__spans_cover(l->spans, hash_at, hash_at + (int64_t)sizeof stored))
        return SMP_OK;
    SMP_TRY(smp__checkpoint_transfer(l->file, &stored, sizeof stored, hash_at, false, l->path));
    SMP_TRY(smp__checkpoint_transfer(l->file, l->piece, 4 * n, at, false, l->path));
    smp__checkpoint_hash(l->piece, n, &found);
    if (stored == found)
        return SMP_OK;
    SMP_TRY(smp__spans_add(l->bad, at, at + 4 * n));
    return smp__spans_add(l->bad, hash_at, hash_at + (int64_t)sizeof stored);
}

static smp_status look_at_number(const looking *l, int32_t param)
{
    const int64_t at = smp__checkpoint_kept_at(l->says, l->whole, param);
    double number;
    if (!l->says->keeps || !smp__spans_cover(l->spans, at, at + SMP__KEPT_NUMBER_BYTES) ||
        smp__checkpoint_kept_read(l->file, l->says, l->whole, param, &number, l->path) == SMP_OK)
        return SMP_OK;
    return smp__spans_add(l->bad, at, at + SMP__KEPT_NUMBER_BYTES);
}

static smp_status look_at_header(const looking *l)
{
    smp__checkpoint_header header;
    if (smp__checkpoint_header_read(l->file, l->path, &header) == SMP_OK &&
        header.at == l->says->at &&
        smp__checkpoint_check(l->file, l->whole, &header, l->path) == SMP_OK)
        return SMP_OK;
    return smp__spans_add(l->bad, 0, l->says->at + SMP__CHECKPOINT_HEADER_BYTES);
}

static smp_status look_at_own(const looking *l)
{
    const int64_t bytes = l->says->own_bytes, at = smp__checkpoint_own_at(l->says, l->whole),
                  end = at + bytes + SMP__OWN_HASH_BYTES;
    if (bytes == 0 || !smp__spans_cover(l->spans, at, end))
        return SMP_OK;
    char *own = malloc((size_t)bytes);
    if (!own)
        return smp_fail_memory((size_t)bytes);
    const bool whole = smp__checkpoint_own_read(l->file, l->says, l->whole, own, l->path) == SMP_OK;
    free(own);
    return whole ? SMP_OK : smp__spans_add(l->bad, at, end);
}

static smp_status look_at_all(const looking *l)
{
    SMP_TRY(look_at_header(l));
    SMP_TRY(look_at_own(l));
    for (int32_t param = 0; param < l->whole->n_param; param++) {
        const int64_t pieces = smp__checkpoint_pieces(l->whole->param[param].elements);
        for (int k = 0; k <= l->says->states; k++)
            for (int64_t piece = 0; piece < pieces; piece++)
                SMP_TRY(look_at_piece(l, param, k, piece));
        SMP_TRY(look_at_number(l, param));
        smp__progress_note();
    }
    smp__spans_join(l->bad);
    return SMP_OK;
}

/* The place keeps its name, which proves what others have. */
static smp_status drop(smp__kept_folder *folder, const smp__kept_state *state,
                       const smp__spans *bad)
{
    smp__kept_state less = *state;
    less.spans = (smp__spans){0};
    smp_status status = smp__spans_without(&state->spans, bad, &less.spans);
    if (status == SMP_OK && state->named)
        status = smp__kept_unname(folder, state->place);
    if (status == SMP_OK)
        status = smp__kept_extend(folder, state->place, &less);
    if (status == SMP_OK && state->named)
        status = smp__kept_name(folder, state->place, state->step);
    smp__spans_free(&less.spans);
    return status;
}

static smp_status verify_place(const smp *s, const smp__kept_state *state)
{
    const struct smp__keep *k = smp__keep_of(s);
    smp__spans bad = {0};
    looking l = {.whole = smp_graph_whole(s->graph),
                 .says = &k->part.says,
                 .spans = &state->spans,
                 .file = smp__kept_file(k->folder, state->place),
                 .path = s->options->runtime.keep_in,
                 .piece = malloc(SMP_PIECE_ELEMENTS * sizeof(float)),
                 .bad = &bad};
    smp_status status =
        l.piece ? look_at_all(&l) : smp_fail_memory(SMP_PIECE_ELEMENTS * sizeof(float));
    if (status == SMP_OK && bad.n > 0)
        status = drop(k->folder, state, &bad);
    smp__spans_free(&bad);
    free(l.piece);
    return status;
}

/* The first rank's: of all places of this machine those that hold the state. */
static smp_status verify_own(const smp *s, const smp__kept_state *of)
{
    smp_status status = SMP_OK;
    for (int place = 0; place < SMP__KEPT_PLACES && status == SMP_OK; place++) {
        smp__kept_state here;
        status = smp__kept_look(smp__keep_of(s)->folder, place, &here);
        if (status == SMP_OK && here.step >= 0 && smp__kept_same(&here, of))
            status = verify_place(s, &here);
        smp__kept_state_free(&here);
    }
    return status;
}

smp_status smp__kept_verify(smp *s, smp__kept_list *list, int *i)
{
    smp__kept_state of = list->state[list->chosen[*i]];
    of.spans = (smp__spans){0};
    *i = -1;
    SMP_TRY(smp__comm_agree(s->comm, smp__keep_is_first(s) ? verify_own(s, &of) : SMP_OK));
    smp__kept_list_free(list);
    SMP_TRY(smp__kept_list_make(s, list));
    for (int at = 0; at < list->n_chosen; at++)
        if (smp__kept_same(&list->state[list->chosen[at]], &of))
            *i = at;
    return SMP_OK;
}

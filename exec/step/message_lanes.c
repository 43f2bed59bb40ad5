/* The lanes of a rank. A lane holds the messages from one rank to another that must come in one
 * order, so the fewer lanes the better for a transport that keeps something for each; and a lane's
 * sends must stand in the order of its receives. There are three kinds:
 *
 * - All messages between neighbouring stages, activations and gradients, from rank a to rank b. The
 *   verifier (schedule/verify/verify.h) proves that along the `>` of a the positions of their `<`
 *   in the program of b rise.
 * - What jumps over stages from stage f to stage t, of one kind (activations or gradients). The
 *   verifier proves the same for each such transfer, and all of them have the same `>` and `<`.
 * - The accumulators of tied weights from stage f to rank b.
 *
 * Sends are started at their `>`. Receives are posted ahead, but in the order of their `<`: the
 * memory planner gives each the position of the last compute action before its `<`, which never
 * falls along the program, and lists those of one position in the order of their `<`. Where one `>`
 * sends several tensors to a stage, both ends take them by rising transfer: the sender walks its
 * channels, the receiver flow->in_list. Evaluation walks (micro-batch, chunk, transfer) on both
 * ends, and stages rise with chunks. Accumulators of one stage are sent at its R, received before
 * the first action or after the last, on both ends by rising use (smp_memory_rank.use); those of
 * two stages of one rank would not be, as the order of its R is its own.
 *
 * A message waits for the earlier ones of its lane. That adds nothing to what the verifier lets
 * wait: they stand earlier in the programs of both ends. */
#include "exec/step/message_lanes.h"
#include "exec/step/reduce.h"
#include "exec/step/reduce_state.h"

#include <stdlib.h>

#include "exec/step/stepping.h"
#include "schedule/lower/crossing.h"

/* receiver: its number in comm->messages. */
static int64_t transfer_id(const smp *s, const smp_transfer *transfer, int receiver)
{
    int64_t ranks = s->comm->pipeline_size, stages = s->work->flow->n_stage;
    int64_t from = transfer->from_stage, to = transfer->to_stage;
    const int *begin = s->comm->rank_begin;
    int64_t id = ranks * ranks + ((int64_t)transfer->kind * stages + from) * stages + to;
    if (smp__crossing_is_direct(transfer))
        id = s->work->stage_rank[from] * ranks + s->work->stage_rank[to];
    return begin ? id * begin[ranks] + receiver : id;
}

/* Both ranks have groups as large: its number is the same in both. */
static int64_t tie_id(const smp *s, int64_t from_stage, int64_t to_rank)
{
    int64_t ranks = s->comm->pipeline_size, stages = s->work->flow->n_stage;
    const int *begin = s->comm->rank_begin;
    int64_t id = ranks * ranks + 2 * stages * stages + from_stage * ranks + to_rank;
    return begin ? id * begin[ranks] + begin[to_rank] + s->comm->tensor_rank : id;
}

/* The number in comm->messages of this rank, or of the one that it sends to or has from. */
static int own_end(const smp *s)
{
    const int *begin = s->comm->rank_begin;
    const int rank = s->comm->pipeline_rank;
    return begin ? begin[rank] + s->comm->tensor_rank : rank;
}

static int find(const smp *s, int64_t id)
{
    int low = 0, high = s->stepping->lanes->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (s->stepping->lanes->lane[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int smp__lane_of_transfer(const smp *s, int32_t transfer, int end)
{
    const smp_transfer *t = &s->work->flow->transfer[transfer];
    const int to = s->work->stage_rank[t->to_stage];
    int first = own_end(s);
    if (to != s->comm->pipeline_rank)
        smp__comm_ends(s->comm, to, true, &first);
    return find(s, transfer_id(s, t, first + end));
}

int smp__lane_of_tie(const smp *s, int from_stage, int to_rank)
{
    return find(s, tie_id(s, from_stage, to_rank));
}

/* One lane for each transfer of this rank and its receiver; returns their number. With `lane` NULL
 * only counts. */
static int add_transfers(const smp *s, smp_lane *lane)
{
    int n = 0, own = s->comm->pipeline_rank;
    for (int32_t i = 0; i < s->work->flow->n_transfer; i++) {
        const smp_transfer *transfer = &s->work->flow->transfer[i];
        int from = s->work->stage_rank[transfer->from_stage],
            to = s->work->stage_rank[transfer->to_stage];
        if (from == to || (from != own && to != own))
            continue;
        int first;
        const int ends = smp__comm_ends(s->comm, from == own ? to : from, from == own, &first);
        for (int end = first; lane && end < first + ends; end++)
            lane[n + end - first] =
                (smp_lane){.id = transfer_id(s, transfer, from == own ? end : own_end(s)),
                           .peer = end,
                           .outgoing = from == own,
                           .messages = s->work->microbatches,
                           .max_bytes = transfer->bytes};
        n += ends;
    }
    return n;
}

/* One lane for each message of tied weights. */
static void add_ties(const smp *s, smp_lane *lane)
{
    for (int i = 0; i < s->stepping->reducer->n_tie; i++) {
        const smp__tie_message *tie = &s->stepping->reducer->tie[i];
        const smp_use *use = &s->graph->use[tie->use];
        bool outgoing = tie->chunk >= 0;
        int peer;
        smp__comm_ends(s->comm, tie->peer, outgoing, &peer);
        lane[i] =
            (smp_lane){.id = tie_id(s, s->work->stage_of_op[use->op],
                                    outgoing ? tie->peer : s->comm->pipeline_rank),
                       .peer = peer,
                       .outgoing = outgoing,
                       .messages = 1,
                       .max_bytes = s->graph->param[use->param].elements * (int64_t)sizeof(float)};
    }
}

static int by_id(const void *a, const void *b)
{
    int64_t left = ((const smp_lane *)a)->id, right = ((const smp_lane *)b)->id;
    return (left > right) - (left < right);
}

/* Makes one lane of those with the same id; returns how many there are then. */
static int merge(smp_lane *lane, int n)
{
    int last = -1;
    for (int i = 0; i < n; i++) {
        if (last < 0 || lane[last].id != lane[i].id) {
            lane[++last] = lane[i];
            continue;
        }
        lane[last].messages += lane[i].messages;
        if (lane[i].max_bytes > lane[last].max_bytes)
            lane[last].max_bytes = lane[i].max_bytes;
    }
    return last + 1;
}

smp_status smp__messages_lanes(smp *s, smp_transport_options *options)
{
    SMP_TRY(smp__reduce_ties(s));
    SMP_TRY(smp__reduce_terms(s));
    int transfers = add_transfers(s, NULL), n = transfers + s->stepping->reducer->n_tie;
    s->stepping->lanes =
        calloc(1, sizeof *s->stepping->lanes + ((size_t)n + 1) * sizeof *s->stepping->lanes->lane);
    if (!s->stepping->lanes)
        return smp_fail_memory((size_t)n * sizeof *s->stepping->lanes->lane);
    smp_lane *lane = s->stepping->lanes->lane;
    add_transfers(s, lane);
    add_ties(s, lane + transfers);
    qsort(lane, (size_t)n, sizeof *lane, by_id);
    s->stepping->lanes->n = merge(lane, n);
    options->n_lane = s->stepping->lanes->n;
    options->lane = lane;
    return SMP_OK;
}

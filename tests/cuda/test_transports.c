/* Every transport with the devices that it suits, on as many ranks as there are: random lanes,
 * messages and sums, started ahead and waited for late as the executor does it. Buffers are
 * overwritten as soon as a send is done, and received into again as soon as their contents have
 * been used: an order that a transport does not keep shows in the contents. Run it on 1, 2 and 4
 * ranks.
 *
 * All ranks draw the same global list of messages, each in its lane's order, and take part in
 * theirs in the order of the list: that cannot deadlock, as the first message that is not done has
 * all it needs. */
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exec/transport/transport.h"
#include "tests/case_count.h"
#include "tests/cuda/fold_terms.h"
#include "tests/emulate/emulate_traffic.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            give_up(__LINE__, #condition);                                                         \
    } while (0)
#define OK(call) CHECK((call) == SMP_OK)

enum {
    MAX_LANES = 10,
    MAX_REPLICAS = 8,
    MAX_MESSAGES = 64,
    BUFFERS = 2, /* of a lane */
    MAX_BYTES = 5 << 19,
    SUMS = 7,
    MAX_TERMS = 6, /* of a member */
    STEPS = 2
};

static int world_rank, world_size;

static void give_up(int line, const char *condition)
{
    fprintf(stderr, "rank %d: test_transports.c:%d: %s failed: %s\n", world_rank, line, condition,
            smp_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int members_of(const smp_comm *comm, smp_reach reach)
{
    return reach == SMP_REACH_ALL     ? comm->ddp_size
           : reach == SMP_REACH_GROUP ? comm->shard_size
                                      : comm->ddp_size / comm->shard_size;
}

/* The replica that is member k of this rank's sums of a reach. */
static int replica_of(const smp_comm *comm, smp_reach reach, int k)
{
    return reach == SMP_REACH_ALL     ? k
           : reach == SMP_REACH_GROUP ? comm->replica - comm->shard_rank + k
                                      : k * comm->shard_size + comm->shard_rank;
}

static uint64_t random_state;

/* Below n. */
static int draw(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

typedef struct message {
    int lane, from, to, index; /* index in its lane */
    int64_t bytes;
    int own;     /* number of this rank's end of the lane, -1: not ours */
    char *place; /* device memory of its own: what is sent, or a copy of what was received */
    smp_request request;
} message;

typedef struct plan {
    int lanes, from[MAX_LANES], to[MAX_LANES], count[MAX_LANES], own[MAX_LANES];
    int64_t max_bytes[MAX_LANES];
    int messages;
    message message[MAX_MESSAGES];
    smp_lane lane[MAX_LANES]; /* of this rank */
    int n_lane;
    smp_sum sum[SUMS]; /* but for data and cut */
    int64_t sum_count[SUMS];
    int64_t cut[SUMS][MAX_REPLICAS + 1]; /* of ALL and GROUP: replicas have the same */
    int sum_at[SUMS];                    /* before which message it is started */
    int blocks;                          /* of gradients, of all replicas */
    smp_sum_terms terms[SMP_N_REACH];    /* and what they are to sums */
} plan;

typedef struct bench {
    smp_comm comm;
    const smp_device *device;
    void *device_context;
    const smp_transport *transport;
    void *transport_context;
    plan plan;
    char *arena, *host; /* device memory, and as much pinned */
    int64_t arena_bytes;
    char *buffer[MAX_LANES][BUFFERS];
    message *holder[MAX_LANES][BUFFERS]; /* a send that may still read the buffer */
    float *sum[SUMS], *term[SUMS]; /* `term` is copied to `sum` just before, back just after */
} bench;

static smp_sum_members sum_members(const bench *b, smp_reach reach)
{
    const smp_comm *comm = &b->comm;
    return (smp_sum_members){.n = members_of(comm, reach),
                             .first =
                                 reach == SMP_REACH_GROUP ? comm->replica - comm->shard_rank : 0,
                             .each = reach == SMP_REACH_ACROSS ? comm->shard_size : 1};
}

static int64_t draw_bytes(void)
{
    static const int64_t sizes[] = {1, 3, 64, 4097, 1 << 20, (1 << 20) + 1, MAX_BYTES};
    return sizes[draw(sizeof(sizes) / sizeof(sizes[0]))];
}

/* Any reach, half and cut; one sum is long, parts may be empty. Sums across groups differ from part
 * to part. */
static void draw_sum(plan *p, int i, const smp_comm *comm)
{
    const smp_reach any = (smp_reach)draw(SMP_N_REACH);
    const smp_reach reach = comm->shard_size > 1 ? any : SMP_REACH_ALL;
    const bool hops = comm->near != MPI_COMM_NULL && reach != SMP_REACH_ACROSS;
    const int members = members_of(comm, reach);
    const int how = !hops ? draw(3) : reach == SMP_REACH_ALL ? 2 : draw(2);
    p->sum[i] =
        (smp_sum){.reach = reach, .add = how != 1, .bf16 = how != 1 && draw(2), .gather = how > 0};
    for (int k = 0; k < members; k++) {
        int64_t part = draw(4) == 0 ? 0 : draw(i == 1 ? 2500000 / members : 3000);
        if (reach == SMP_REACH_ACROSS)
            part += 700 * comm->shard_rank;
        p->cut[i][k + 1] = p->cut[i][k] + part;
    }
    p->sum_count[i] = p->cut[i][members];
}

static void draw_plan(plan *p, const smp_comm *comm)
{
    int ranks = comm->pipeline_size, left = 0;
    *p = (plan){.lanes = ranks > 1 ? 1 + draw(MAX_LANES) : 0};
    p->blocks = comm->ddp_size;
    if (comm->near == MPI_COMM_NULL && draw(2) == 0) /* any number up to 3 of each */
        p->blocks += draw(2 * comm->ddp_size + 1);
    for (int i = 0; i < p->lanes; i++) {
        p->from[i] = draw(ranks);
        p->to[i] = (p->from[i] + 1 + draw(ranks - 1)) % ranks;
        p->count[i] = 1 + draw(5);
        p->max_bytes[i] = draw_bytes();
        p->own[i] = -1;
        left += p->count[i];
        bool outgoing = p->from[i] == comm->pipeline_rank;
        if (!outgoing && p->to[i] != comm->pipeline_rank)
            continue;
        p->own[i] = p->n_lane;
        p->lane[p->n_lane++] = (smp_lane){.id = 10 * i + 7,
                                          .peer = outgoing ? p->to[i] : p->from[i],
                                          .outgoing = outgoing,
                                          .messages = p->count[i],
                                          .max_bytes = p->max_bytes[i]};
    }
    int sent[MAX_LANES] = {0};
    while (left > 0) {
        int lane = draw(p->lanes);
        if (sent[lane] == p->count[lane])
            continue;
        p->message[p->messages++] =
            (message){.lane = lane,
                      .from = p->from[lane],
                      .to = p->to[lane],
                      .index = sent[lane]++,
                      .bytes = draw(2) ? p->max_bytes[lane] : 1 + draw((int)p->max_bytes[lane]),
                      .own = p->own[lane]};
        left--;
    }
    for (int i = 0; i < SUMS; i++) {
        draw_sum(p, i, comm);
        p->sum_at[i] = draw(p->messages + 1);
    }
}

/* Every message has its place, every lane its buffers, every sum its data. */
static void place(bench *b)
{
    plan *p = &b->plan;
    char *next = NULL;
    for (int pass = 0; pass < 2; pass++) {
        int64_t used = 0;
        for (int i = 0; i < p->messages; i++)
            if (p->message[i].own >= 0) {
                p->message[i].place = next + used;
                used += (p->message[i].bytes + 63) / 64 * 64;
            }
        for (int i = 0; i < p->lanes; i++)
            for (int k = 0; p->own[i] >= 0 && k < BUFFERS; k++) {
                b->buffer[i][k] = next + used;
                used += (p->max_bytes[i] + 63) / 64 * 64;
            }
        for (int i = 0; i < SUMS; i++) {
            const int arrays = p->terms[p->sum[i].reach].width;
            int64_t bytes = arrays * ((p->sum_count[i] * 4 + 63) / 64 * 64);
            b->sum[i] = (float *)(next + used);
            b->term[i] = (float *)(next + used + bytes);
            used += 2 * bytes;
        }
        b->arena_bytes = used + 64;
        if (pass == 0) {
            OK(b->device->reserve(b->device_context, b->arena_bytes, &b->arena));
            OK(b->device->reserve_host(b->device_context, b->arena_bytes, &b->host));
            next = b->arena;
        }
    }
}

static char *host_of(const bench *b, const void *device_memory)
{
    return b->host + ((const char *)device_memory - b->arena);
}

/* Bytes `at` to `at` + `bytes` of a message; `at` is a multiple of 8, `out` has room for whole
 * words. */
static void content(const message *m, int step, int replica, int64_t at, int64_t bytes, void *out)
{
    const uint64_t seed = (uint64_t)(m->lane * 131 + m->index * 31 + step * 7);
    for (int64_t word = 0; word < (bytes + 7) / 8; word++) {
        const uint64_t x = ((uint64_t)(at / 8 + word) + seed) * 0x9E3779B97F4A7C15u;
        ((uint64_t *)out)[word] = x ^ x >> 29 ^ (uint64_t)replica;
    }
}

/* Array k of n that a member brings to a sum, or has after it: the last of them comes first. */
static float *array_at(const bench *b, float *sum, int i, int k, int n)
{
    return sum + (k + 1 == n ? 0 : k + 1) * b->plan.sum_count[i];
}

static float term(int sum, int step, int replica, int64_t at)
{
    const uint32_t x = (uint32_t)at * 7 + (uint32_t)(sum * 3 + step + replica * 11);
    return 1.0f / (float)(1 + x % 1009) - 0.1f * (float)(replica + 1);
}

static void describe(const void *context, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s", (const char *)context);
}

static void wait_idle(bench *b)
{
    smp_wait wait = {0};
    for (bool done = false;;) {
        OK(b->device->idle(b->device_context, &done));
        if (done)
            return;
        OK(b->transport->progress(b->transport_context));
        OK(smp__comm_pause(&b->comm, &wait, describe, "the device"));
    }
}

static void wait_message(bench *b, message *m)
{
    smp_wait wait = {0};
    for (bool done = false;;) {
        OK(b->transport->test(b->transport_context, &m->request, &done));
        CHECK(done || !b->transport->on_device);
        if (done)
            return;
        OK(smp__comm_pause(&b->comm, &wait, describe, "a message"));
    }
}

static int member_of(const bench *b, smp_reach reach)
{
    const MPI_Comm comm = smp__transport_reach(&b->comm, reach);
    int own = 0;
    if (comm != MPI_COMM_NULL)
        MPI_Comm_rank(comm, &own);
    return own;
}

/* Arrays that this rank brings to a sum. */
static int own_terms(const bench *b, int i)
{
    const smp_sum *sum = &b->plan.sum[i];
    return sum->add ? smp__sum_terms_of(&b->plan.terms[sum->reach], member_of(b, sum->reach)) : 1;
}

/* What is sent goes into its place, sums into theirs; all other memory is filled with 0xA5. */
static void fill(bench *b, int step)
{
    plan *p = &b->plan;
    memset(b->host, 0xA5, (size_t)b->arena_bytes);
    for (int i = 0; i < p->messages; i++) {
        const message *m = &p->message[i];
        if (m->own >= 0 && m->from == b->comm.pipeline_rank)
            content(m, step, b->comm.replica, 0, m->bytes, host_of(b, m->place));
    }
    for (int i = 0; i < SUMS; i++) {
        const int n = own_terms(b, i), member = member_of(b, p->sum[i].reach);
        for (int t = 0; t < n; t++)
            for (int64_t k = 0; k < p->sum_count[i]; k++)
                array_at(b, (float *)host_of(b, b->term[i]), i, t, n)[k] =
                    term(i, step, replica_of(&b->comm, p->sum[i].reach, member) + 100 * t, k);
    }
    OK(b->device->upload(b->device_context, b->arena, b->host, b->arena_bytes));
    wait_idle(b);
}

static void send(bench *b, message *m)
{
    int k = m->index % BUFFERS;
    char *buffer = b->buffer[m->lane][k];
    message *holder = b->holder[m->lane][k];
    if (holder) {
        wait_message(b, holder);
        OK(b->device->zero(b->device_context, buffer, holder->bytes));
    }
    OK(b->device->copy(b->device_context, buffer, m->place, m->bytes));
    OK(b->transport->send(b->transport_context, m->own, 100 * m->lane + m->index, buffer, m->bytes,
                          &m->request));
    b->holder[m->lane][k] = m;
}

static void receive(bench *b, message *m)
{
    OK(b->transport->receive(b->transport_context, m->own, 100 * m->lane + m->index,
                             b->buffer[m->lane][m->index % BUFFERS], m->bytes, &m->request));
}

/* Uses what has arrived: copies it away, spoils the buffer. */
static void use(bench *b, message *m)
{
    char *buffer = b->buffer[m->lane][m->index % BUFFERS];
    wait_message(b, m);
    OK(b->device->copy(b->device_context, m->place, buffer, m->bytes));
    OK(b->device->zero(b->device_context, buffer, m->bytes));
}

/* Posts this rank's receives that stand before `end`, as far as their buffers are free. */
static int post(bench *b, int posted, int end, const int *used)
{
    plan *p = &b->plan;
    for (; posted < end; posted++) {
        message *m = &p->message[posted];
        if (m->own < 0 || m->to != b->comm.pipeline_rank)
            continue;
        if (m->index - used[m->lane] >= BUFFERS)
            break;
        receive(b, m);
    }
    return posted;
}

static int64_t sum_bytes(const bench *b, int i)
{
    return 4 * b->plan.sum_count[i] * b->plan.terms[b->plan.sum[i].reach].width;
}

static void start_sum(bench *b, int sum, smp_reduction **reduction)
{
    OK(b->device->copy(b->device_context, b->sum[sum], b->term[sum], sum_bytes(b, sum)));
    smp_sum asked = b->plan.sum[sum];
    asked.data = b->sum[sum];
    asked.more = b->sum[sum] + b->plan.sum_count[sum];
    asked.stride = b->plan.sum_count[sum];
    asked.cut = b->plan.cut[sum];
    const int members = members_of(&b->comm, asked.reach);
    const long unaligned = emulate_nccl_unaligned();
    OK(b->transport->reduce(b->transport_context, &asked, reduction));
    if (asked.add && asked.gather && first_hop(b->transport, &b->comm, &asked, members) < members)
        CHECK(emulate_nccl_unaligned() == unaligned); /* the transport cuts these */
}

static void run_step(bench *b, int step)
{
    plan *p = &b->plan;
    smp_reduction *reduction[SUMS] = {NULL};
    int used[MAX_LANES] = {0}, posted = 0;
    memset(b->holder, 0, sizeof(b->holder));
    fill(b, step);
    for (int i = 0; i <= p->messages; i++) {
        for (int k = 0; k < SUMS; k++) /* in the order of k on every replica */
            if (p->sum_at[k] == i)
                start_sum(b, k, &reduction[k]);
        if (i == p->messages)
            break;
        message *m = &p->message[i];
        int ahead = i + 1 + draw(6);
        posted = post(b, posted, ahead < p->messages ? ahead : p->messages, used);
        if (m->own < 0)
            continue;
        if (m->from == b->comm.pipeline_rank) {
            send(b, m);
        } else {
            use(b, m);
            used[m->lane]++;
        }
        OK(b->transport->progress(b->transport_context));
    }
    for (int i = 0; i < p->messages; i++)
        wait_message(b, &p->message[i]);
    for (int k = 0; k < SUMS; k++) {
        smp_wait wait = {0};
        for (bool done = false; !done;) {
            OK(b->transport->reduce_test(b->transport_context, &reduction[k], &done));
            CHECK(done == (reduction[k] == NULL));
            if (!done)
                OK(smp__comm_pause(&b->comm, &wait, describe, "a sum"));
        }
        OK(b->device->copy(b->device_context, b->term[k], b->sum[k], sum_bytes(b, k)));
    }
    OK(b->device->download(b->device_context, b->host, b->arena, b->arena_bytes));
    wait_idle(b);
}

/* Of members that bring several terms each, or leave several: number `left` of what is left. That
 * terms are added in the right order is proven in tests/schedule/plan/test_sum_terms.c. */
static float expected_of_terms(const bench *b, int i, int step, int left, int64_t k)
{
    const smp_sum *sum = &b->plan.sum[i];
    const smp_sum_terms *t = &b->plan.terms[sum->reach];
    const bool rounds = sum->bf16 && t->members > 1;
    float value[MAX_REPLICAS * MAX_TERMS];
    for (int m = 0; m < t->members; m++)
        for (int at = t->first[m]; at < t->first[m + 1]; at++) {
            const int replica = replica_of(&b->comm, sum->reach, m);
            value[at] = term(i, step, replica + 100 * (at - t->first[m]), k);
            value[at] = rounds ? to_bf16(value[at]) : value[at];
        }
    for (int a = 0; a < t->n_add; a++)
        value[t->to[a]] += value[t->from[a]];
    return rounds ? to_bf16(value[t->left[left]]) : value[t->left[left]];
}

/* What a rank has after a sum: neighbours in pairs, those in pairs and so on. Only gathered, it is
 * the holder's term. In bf16 terms and what a hop ends with are rounded. */
static float expected(const bench *b, int i, int step, int holder, int64_t k)
{
    const smp_sum *sum = &b->plan.sum[i];
    const int members = members_of(&b->comm, sum->reach);
    float value[MAX_REPLICAS];
    if (sum->add && b->plan.terms[sum->reach].width > 1)
        return expected_of_terms(b, i, step, b->plan.terms[sum->reach].n_left - 1, k);
    for (int m = 0; m < members; m++)
        value[m] = term(i, step, replica_of(&b->comm, sum->reach, m), k);
    if (!sum->add)
        return value[holder];
    fold_terms(value, members, sum->bf16 ? first_hop(b->transport, &b->comm, sum, members) : 0);
    return value[0];
}

static void check_sum(bench *b, int i, int step)
{
    const plan *p = &b->plan;
    const smp_sum *sum = &p->sum[i];
    const int own = member_of(b, sum->reach), left = p->terms[sum->reach].n_left;
    float *got = (float *)host_of(b, b->term[i]);
    for (int t = 0; sum->add && t + 1 < left; t++) /* nobody gathers these */
        for (int64_t k = p->cut[i][own]; k < p->cut[i][own + 1]; k++)
            CHECK(array_at(b, got, i, t, left)[k] == expected_of_terms(b, i, step, t, k));
    for (int m = 0; m < members_of(&b->comm, sum->reach); m++)
        for (int64_t k = p->cut[i][m]; (m == own || sum->gather) && k < p->cut[i][m + 1]; k++)
            CHECK(got[k] == expected(b, i, step, m, k));
}

static void check_message(const bench *b, const message *m, int step)
{
    uint64_t word[512];
    for (int64_t at = 0, n; at < m->bytes; at += n) {
        n = m->bytes - at < (int64_t)sizeof word ? m->bytes - at : (int64_t)sizeof word;
        content(m, step, b->comm.replica, at, n, word);
        CHECK(memcmp(host_of(b, m->place) + at, word, (size_t)n) == 0);
    }
}

static void check_step(bench *b, int step)
{
    plan *p = &b->plan;
    for (int i = 0; i < p->messages; i++)
        if (p->message[i].own >= 0)
            check_message(b, &p->message[i], step);
    for (int i = 0; i < SUMS; i++)
        check_sum(b, i, step);
}

/* For sums: of all replicas, of a group and across them, near and far, which may be among the
 * same. */
static int most_communicators(const smp_comm *comm)
{
    int near = 1, far = 1;
    if (comm->near != MPI_COMM_NULL)
        MPI_Comm_size(comm->near, &near);
    if (comm->far != MPI_COMM_NULL)
        MPI_Comm_size(comm->far, &far);
    const bool groups = comm->shard_size > 1 && comm->shard_size < comm->ddp_size;
    const int hops = near > 1 ? near * far : 0; /* ranks whose sums need no other */
    return (comm->ddp_size > 1 && hops != comm->ddp_size) +
           (groups ? 1 + (hops != comm->shard_size) : 0) + (near > 1) + (far > 1);
}

/* Opens, runs some steps and closes; false if the transport does not suit. */
static bool run_transport(bench *b, const smp_transport *transport)
{
    b->transport = transport;
    smp_transport_options options = {.comm = &b->comm,
                                     .device = b->device,
                                     .device_context = b->device_context,
                                     .reductions = SUMS};
    smp_status status = smp_transport_suits(transport, &options);
    if (smp__comm_agree(&b->comm, status) != SMP_OK) {
        CHECK(strlen(smp_last_error()) > 0);
        return false;
    }
    draw_plan(&b->plan, &b->comm);
    for (int i = 0; i < SMP_N_REACH; i++) {
        const smp_reach reach = (smp_reach)i;
        OK(smp__sum_terms_make(&b->plan.terms[i], b->plan.blocks, b->comm.ddp_size,
                               sum_members(b, reach)));
        CHECK(b->plan.terms[i].width <= MAX_TERMS);
        options.terms[i] = &b->plan.terms[i];
    }
    place(b);
    options.n_lane = b->plan.n_lane;
    options.lane = b->plan.lane;
    const long made = emulate_nccl_made();
    OK(smp__comm_agree(&b->comm, transport->open(&options, &b->transport_context)));
    if (strcmp(transport->name, "nccl") == 0) /* one for all sums among the same ranks */
        CHECK(emulate_nccl_made() - made <= b->plan.n_lane + most_communicators(&b->comm));
    CHECK(transport->max_tag(b->transport_context) > 100 * MAX_LANES);
    const long threads = emulate_nccl_threads();
    for (int step = 0; step < STEPS; step++) {
        run_step(b, step);
        check_step(b, step);
        MPI_Barrier(b->comm.world); /* draws of the next step are the same on all ranks */
        random_state = (uint64_t)step + 77;
    }
    CHECK(emulate_nccl_threads() == threads); /* what a step enqueues is in its stream at once */
    transport->close(b->transport_context);
    for (int i = 0; i < SMP_N_REACH; i++)
        smp__sum_terms_free(&b->plan.terms[i]);
    b->device->release(b->device_context, b->arena, b->arena_bytes);
    b->device->release_host(b->device_context, b->host);
    return true;
}

/* One grid of ranks on one device; returns how many transports ran. */
static int run_grid(const smp_device *device, int ddp, int shard, int near, uint64_t seed)
{
    static bench b;
    int ran = 0;
    b = (bench){.device = device};
    OK(smp__comm_open(&b.comm, (smp_comm_limits){30, 900, 900}));
    OK(smp__comm_split(&b.comm, (smp_comm_place){.pipeline_rank = world_rank % (world_size / ddp),
                                                 .replica = world_rank / (world_size / ddp),
                                                 .shard = shard,
                                                 .near = near,
                                                 .tensor = 1}));
    smp_device_options options = {.precision = SMP_PRECISION_FP32, .node_rank = b.comm.node_rank};
    OK(smp__comm_agree(&b.comm, device->open(&options, &b.device_context)));
    const smp_transport_options any = {
        .comm = &b.comm, .device = device, .device_context = b.device_context};
    const smp_transport *best = smp_transport_choose(&any, NULL, 0);
    CHECK(best);
    for (const smp_transport *const *t = device->transports; *t; t++) {
        random_state = seed;
        if (run_transport(&b, *t)) {
            CHECK(ran > 0 || *t == best);
            ran++;
        }
    }
    device->close(b.device_context);
    smp__comm_close(&b.comm);
    return ran;
}

/* Ranks that share a GPU cannot use NCCL, and are told so. */
static void test_choice(const smp_device *device)
{
    char why[256];
    smp_comm comm;
    void *context;
    OK(smp__comm_open(&comm, (smp_comm_limits){30, 900, 900}));
    OK(smp__comm_split(&comm,
                       (smp_comm_place){.pipeline_rank = world_rank, .shard = 1, .tensor = 1}));
    smp_device_options options = {.node_rank = 0};
    OK(device->open(&options, &context));
    smp_transport_options choice = {.comm = &comm, .device = device, .device_context = context};
    const smp_transport *best = smp_transport_choose(&choice, why, sizeof(why));
    CHECK(best);
    if (device->host_memory)
        CHECK(strcmp(best->name, "mpi") == 0);
    else if (comm.node_size > 1)
        CHECK(strcmp(best->name, "staged") == 0 && strstr(why, "two ranks share GPU 0000:17:00.0"));
    if (world_rank == 0)
        printf("device %s: transport %s (%s)\n", device->name, best->name, why);
    device->close(context);
    options.node_rank = comm.node_rank; /* a GPU each from here on */
    OK(device->open(&options, &context));
    choice.device_context = context;
    choice.n_lane = world_rank == world_size - 1 ? 27 : 25; /* each in a queue of its own */
    best = smp_transport_choose(&choice, why, sizeof(why));
    if (!device->host_memory)
        CHECK(strcmp(best->name, "staged") == 0 &&
              strstr(why, "27 lanes of messages and 6 streams"));
    choice.n_lane = 26;
    best = smp_transport_choose(&choice, why, sizeof(why));
    if (!device->host_memory)
        CHECK(strcmp(best->name, "staged") == 0 &&
              strstr(why, "26 lanes of messages, and sums, can take 52 multiprocessors, "
                          "the GPU has 52"));
    choice.n_lane = 25;
    best = smp_transport_choose(&choice, why, sizeof(why));
    CHECK(strcmp(best->name, device->host_memory ? "mpi" : "nccl") == 0);
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    best = smp_transport_choose(&choice, why, sizeof(why));
    if (!device->host_memory)
        CHECK(strcmp(best->name, "staged") == 0 && strstr(why, "CUDA_LAUNCH_BLOCKING=1"));
    unsetenv("CUDA_LAUNCH_BLOCKING");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1); /* every stream behind every other */
    choice.n_lane = 1;
    best = smp_transport_choose(&choice, why, sizeof(why));
    if (!device->host_memory)
        CHECK(strcmp(best->name, "staged") == 0 &&
              strstr(why, "1 lanes of messages and 6 streams besides, the GPU has 1 queues "
                          "(CUDA_DEVICE_MAX_CONNECTIONS)"));
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    device->close(context);
    smp__comm_close(&comm);
}

/* One rank's third receive fails: its progress says so, the other ranks hear of it, and after abort
 * no device waits for anything any more, not for a message of another lane either. */
static void test_failure(const smp_device *device)
{
    static bench b;
    b = (bench){.device = device, .transport = smp_transport_find("nccl")};
    OK(smp__comm_open(&b.comm, (smp_comm_limits){30, 900, 900}));
    OK(smp__comm_split(&b.comm,
                       (smp_comm_place){.pipeline_rank = world_rank, .shard = 1, .tensor = 1}));
    smp_device_options options = {.node_rank = b.comm.node_rank};
    OK(device->open(&options, &b.device_context));
    OK(device->reserve(b.device_context, 4096, &b.arena));
    smp_lane lane[2] = {{.id = 3,
                         .peer = 1 - world_rank,
                         .outgoing = world_rank == 0,
                         .messages = 5,
                         .max_bytes = 512},
                        {.id = 4,
                         .peer = 1 - world_rank,
                         .outgoing = world_rank == 1,
                         .messages = 1,
                         .max_bytes = 512}};
    smp_transport_options open = {.comm = &b.comm,
                                  .device = device,
                                  .device_context = b.device_context,
                                  .reductions = 1,
                                  .n_lane = world_rank < 2 ? 2 : 0,
                                  .lane = lane};
    OK(b.transport->open(&open, &b.transport_context));
    MPI_Barrier(b.comm.world); /* the failure is to come when all have opened theirs */
    smp_request request[6] = {{0}};
    emulate_nccl_fail(world_rank == 1 ? 2 : -1);
    for (int i = 0; i < 5 && world_rank < 2; i++) {
        void *data = b.arena + 512 * i;
        OK(world_rank == 0
               ? b.transport->send(b.transport_context, 0, i, data, 512, &request[i])
               : b.transport->receive(b.transport_context, 0, i, data, 512, &request[i]));
        bool done = false;
        OK(b.transport->test(b.transport_context, &request[i], &done));
        CHECK(done);
    }
    if (world_rank == 0) { /* nobody sends this one */
        bool done = false;
        OK(b.transport->receive(b.transport_context, 1, 0, b.arena + 2560, 512, &request[5]));
        OK(b.transport->test(b.transport_context, &request[5], &done));
    }
    smp_wait wait = {0};
    smp_status status = SMP_OK;
    while (status == SMP_OK) {
        bool idle = false;
        OK(device->idle(b.device_context, &idle));
        CHECK(world_rank > 1 || !idle);
        status = b.transport->progress(b.transport_context);
        if (status == SMP_OK)
            status = smp__comm_pause(&b.comm, &wait, describe, "the end");
    }
    CHECK(status == SMP_ERR_PEER);
    CHECK(strstr(smp_last_error(), "messages from pipeline rank 0: NCCL: remote process exited"));
    b.transport->abort(b.transport_context);
    smp__comm_notify(&b.comm, status);
    for (bool idle = false; !idle;)
        OK(device->idle(b.device_context, &idle));
    b.transport->close(b.transport_context);
    device->release(b.device_context, b.arena, 4096);
    device->close(b.device_context);
    smp__comm_close(&b.comm);
}

/* A long sum, of which the last rank is late: few of its pieces stand on the device meanwhile. The
 * host waits, watched: one that stood in a full launch queue would not be. */
static void test_pace(const smp_device *device)
{
    enum { FLOATS = 24 * (1 << 18), SOME = 48 };
    static bench b;
    static const int64_t cut[] = {0, FLOATS / 2, FLOATS};
    smp_reduction *reduction;
    b = (bench){.device = device, .transport = smp_transport_find("nccl")};
    OK(smp__comm_open(&b.comm, (smp_comm_limits){30, 900, 900}));
    OK(smp__comm_split(&b.comm, (smp_comm_place){.replica = world_rank, .shard = 1, .tensor = 1}));
    smp_device_options options = {.node_rank = b.comm.node_rank};
    OK(device->open(&options, &b.device_context));
    OK(device->reserve(b.device_context, FLOATS * 4, &b.arena));
    OK(device->zero(b.device_context, b.arena, FLOATS * 4));
    smp_transport_options open = {
        .comm = &b.comm, .device = device, .device_context = b.device_context, .reductions = 1};
    OK(b.transport->open(&open, &b.transport_context));
    emulate_most_queued();
    emulate_nccl_beside();
    if (world_rank == 1)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    smp_sum sum = {.data = (float *)b.arena, .cut = cut, .add = true};
    OK(b.transport->reduce(b.transport_context, &sum, &reduction));
    bool done;
    OK(b.transport->reduce_test(b.transport_context, &reduction, &done));
    wait_idle(&b);
    const long queued = emulate_most_queued();
    CHECK(queued > 4 && queued < SOME);
    /* The next piece comes while one is added up, but where streams have a fixed order. */
    CHECK(getenv("SMP_EMULATE_ORDER") || emulate_nccl_beside() > 0);
    b.transport->close(b.transport_context);
    device->release(b.device_context, b.arena, FLOATS * 4);
    device->close(b.device_context);
    smp__comm_close(&b.comm);
}

/* What a sum of eight terms launches, reads and writes: every term once. */
static void test_traffic(const smp_device *device)
{
    enum { PART = 2 * 10912, ARRAYS = 6, BYTES = ARRAYS * 2 * PART * 4, SLACK = 1 << 18 };
    static const struct {
        int launches; /* of two pieces, the first half of each with 6 groups of messages */
        long bytes;   /* for a number of the own part */
    } most[] = {{2 * 7 + 1, 76}, {2 * 11, 100}};
    static const int64_t cut[] = {0, PART, 2 * PART};
    static bench b;
    smp_reduction *reduction;
    smp_sum_terms terms;
    bool done;
    b = (bench){.device = device, .transport = smp_transport_find("nccl")};
    OK(smp__comm_open(&b.comm, (smp_comm_limits){30, 900, 900}));
    OK(smp__comm_split(&b.comm, (smp_comm_place){.replica = world_rank, .shard = 1, .tensor = 1}));
    OK(device->open(&(smp_device_options){.node_rank = b.comm.node_rank}, &b.device_context));
    OK(device->reserve(b.device_context, BYTES, &b.arena));
    OK(device->zero(b.device_context, b.arena, BYTES));
    OK(smp__sum_terms_make(&terms, 126, 2, (smp_sum_members){.n = 2, .each = 1}));
    CHECK(terms.n == 8 && terms.width == ARRAYS);
    OK(b.transport->open(&(smp_transport_options){.comm = &b.comm,
                                                  .device = device,
                                                  .device_context = b.device_context,
                                                  .reductions = 1,
                                                  .terms = {[SMP_REACH_ALL] = &terms}},
                         &b.transport_context));
    wait_idle(&b);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const smp_sum sum = {.data = (float *)b.arena,
                             .more = (float *)b.arena + 2 * PART,
                             .stride = 2 * PART,
                             .cut = cut,
                             .add = true,
                             .gather = true,
                             .bf16 = bf16};
        CHECK(emulate_traffic_count(true));
        OK(b.transport->reduce(b.transport_context, &sum, &reduction));
        OK(b.transport->reduce_test(b.transport_context, &reduction, &done));
        wait_idle(&b);
        emulate_traffic_count(false);
        const emulate_traffic counted = emulate_traffic_counted();
        CHECK(counted.launches <= most[bf16].launches);
        CHECK(counted.read + counted.written <= most[bf16].bytes * PART + SLACK);
    }
    b.transport->close(b.transport_context);
    smp__sum_terms_free(&terms);
    device->release(b.device_context, b.arena, BYTES);
    device->close(b.device_context);
    smp__comm_close(&b.comm);
}

/* near: replicas that add up first; 0: all at once. */
static void run_transports(const smp_device *device, int ddp, int shard, int near, int grid)
{
    const int ran =
        run_grid(device, ddp, shard, near, (uint64_t)grid * 1000003 + (uint64_t)(ddp + shard));
    CHECK(ran >= 1);
    if (world_rank == 0 && grid == 0)
        printf("device %s, %d ranks, %d replicas, groups of %d, %d first: %d transports\n",
               device->name, world_size, ddp, shard, near, ran);
}

int main(int argc, char **argv)
{
    setenv("SMP_EMULATE_LAZY", "1", 1);
    setenv("SMP_EMULATE_DEVICES", "8", 1);
    setenv("SMP_EMULATE_MULTIPROCESSORS", "52", 1);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    const int grids = few_or_many(world_size > 4 ? 1 : 2, 3);
    for (int i = 0; smp_devices()[i]; i++) {
        const smp_device *device = smp_devices()[i];
        test_choice(device);
        for (int grid = 0, runs = 0; grid < grids; grid++, runs = grid)
            for (int ddp = 1; ddp <= world_size; ddp *= 2)
                for (int shard = 1; shard <= ddp; shard *= 2)
                    run_transports(device, ddp, shard, runs++ % 2 && ddp > 2 ? 2 : 0, grid);
    }
    if (world_size > 1 && smp_device_find("cuda"))
        test_failure(smp_device_find("cuda"));
    if (world_size == 2 && smp_device_find("cuda")) {
        test_pace(smp_device_find("cuda"));
        test_traffic(smp_device_find("cuda"));
    }
    MPI_Finalize();
    return 0;
}

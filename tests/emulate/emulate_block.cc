/* Runs a block of a kernel: its threads are carried by fibers. One fiber runs thread after thread
 * until one of them has to wait; then another fiber goes on, with threads that are ready again or
 * were not started yet. A kernel without barriers needs one fiber and no switch.
 *
 * Nobody is woken by a timer, so when no thread can run and some wait, they would wait for ever: a
 * barrier that a thread missed. That is reported with who waits where. */
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emulate_fiber.h"
#include "emulate_kernel.h"
#include "emulate_state.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{

enum { WARP = 32, MAX_THREADS = 1024, BARRIERS = 16, RED_ZONE = 256 };
constexpr size_t STACK_BYTES = 256 << 10;

enum class place : unsigned char { fresh, running, barrier, shuffle, vote, sync_warp, gone };
const char *const place_name[] = {"has not started",
                                  "runs",
                                  "waits at __syncthreads",
                                  "waits at a shuffle",
                                  "waits at a vote",
                                  "waits at __syncwarp",
                                  "has returned"};

struct lane_state {
    place at;
    int barrier;          /* where at == barrier */
    unsigned mask;        /* of the warp-wide call it waits in */
    int source;           /* of a shuffle */
    uint64_t value;       /* what it gives, then what it gets */
    uint64_t *gathered;   /* shuffle: wants all values here; else NULL */
    emulate_fiber *fiber; /* that carries it while it waits */
    uint3 index;
};

struct barrier_state {
    int expected; /* threads; 0: nobody waits */
    int yes;
    std::vector<int> waiting;
};

/* The block that runs. Static: there is one at a time, and fibers outlive blocks. */
struct {
    const emulate_launch *launch;
    const std::function<void()> *body;
    int threads;
    int order[MAX_THREADS]; /* in which threads are started */
    int started, gone;
    int ready[MAX_THREADS]; /* a ring */
    int ready_first, ready_count;
    bool prefer_ready, newest_ready;
    lane_state thread[MAX_THREADS];
    unsigned arrived[MAX_THREADS / WARP]; /* lanes that wait in warp-wide calls */
    barrier_state barrier[BARRIERS];
    int current;
    emulate_fiber *fiber, *caller;
    std::vector<emulate_fiber *> idle;
    unsigned char *shared;
    size_t shared_capacity;
} block;

[[noreturn]] void die_in_kernel(const char *format, ...) __attribute__((format(printf, 1, 2)));
void die_in_kernel(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    emulate_die("kernel %s, block (%u, %u, %u) of (%u, %u, %u), %d threads: %s", block.launch->name,
                blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z, block.threads,
                text);
}

void push_ready(int thread)
{
    block.ready[(block.ready_first + block.ready_count++) % MAX_THREADS] = thread;
}

int pop_ready()
{
    block.ready_count--;
    if (block.newest_ready)
        return block.ready[(block.ready_first + block.ready_count) % MAX_THREADS];
    const int thread = block.ready[block.ready_first];
    block.ready_first = (block.ready_first + 1) % MAX_THREADS;
    return thread;
}

void become(int thread)
{
    block.current = thread;
    threadIdx = block.thread[thread].index;
}

bool takes_ready()
{
    return block.ready_count > 0 && (block.prefer_ready || block.started == block.threads);
}

/* The lane that a waiting thread misses; -1 if it is complete or does not wait for lanes. */
int missing_lane(int thread)
{
    const lane_state &lane = block.thread[thread];
    if (lane.at != place::shuffle && lane.at != place::vote && lane.at != place::sync_warp)
        return -1;
    const unsigned missing = lane.mask & ~block.arrived[thread / WARP];
    return missing ? __builtin_ctz(missing) : -1;
}

[[noreturn]] void report_lane(int thread, int other)
{
    const lane_state &lane = block.thread[thread];
    const int missing = thread / WARP * WARP + other;
    die_in_kernel("lane %d of warp %d %s with mask 0x%08x, but lane %d %s", thread % WARP,
                  thread / WARP, place_name[static_cast<int>(lane.at)], lane.mask, other,
                  missing >= block.threads
                      ? "does not exist"
                      : place_name[static_cast<int>(block.thread[missing].at)]);
}

/* Lanes that will never come are a cause, waiting at a barrier is mostly a consequence. */
[[noreturn]] void report_stuck()
{
    int waiting = 0, first = -1, stuck = -1;
    for (int t = block.threads - 1; t >= 0; t--) {
        const int other = missing_lane(t), missing = t / WARP * WARP + other;
        if (other >= 0)
            stuck = t;
        if (other >= 0 && (missing >= block.threads || block.thread[missing].at == place::gone))
            report_lane(t, other);
        if (block.thread[t].at == place::barrier) {
            waiting++;
            first = t;
        }
    }
    if (waiting > 0)
        die_in_kernel(
            "__syncthreads that not every thread reaches: %d wait for it (thread %d among "
            "them), %d have returned, %d wait elsewhere",
            waiting, first, block.gone, block.threads - waiting - block.gone);
    if (stuck >= 0)
        report_lane(stuck, missing_lane(stuck));
    die_in_kernel("no thread can run");
}

void worker();

/* Goes on with another fiber; comes back when the caller's own is chosen again. */
void give_way()
{
    emulate_fiber *own = block.fiber, *next;
    if (takes_ready()) {
        become(pop_ready());
        block.thread[block.current].at = place::running;
        next = block.thread[block.current].fiber;
    } else if (block.started < block.threads) {
        if (block.idle.empty())
            block.idle.push_back(emulate_fiber_create(STACK_BYTES, worker));
        next = block.idle.back();
        block.idle.pop_back();
    } else if (block.gone == block.threads) {
        next = block.caller;
    } else {
        report_stuck();
    }
    block.fiber = next;
    if (next != own)
        emulate_fiber_switch(own, next);
}

/* The body of every fiber. */
void worker()
{
    for (;;) {
        while (block.started < block.threads && !takes_ready()) {
            become(block.order[block.started++]);
            block.thread[block.current].at = place::running;
            (*block.body)();
            block.thread[block.current].at = place::gone;
            block.gone++;
        }
        block.idle.push_back(block.fiber);
        give_way();
    }
}

void wait_here()
{
    block.thread[block.current].fiber = block.fiber;
    give_way();
}

/* Wakes who waited, from a random one on: the order in which they came says nothing. */
void wake(const int *threads, int n)
{
    const int first = static_cast<int>(emulate_random_below(static_cast<size_t>(n)));
    for (int i = first; i < n; i++)
        push_ready(threads[i]);
    for (int i = 0; i < first; i++)
        push_ready(threads[i]);
}

void arrive(int id, int expected, bool yes)
{
    if (id < 0 || id >= BARRIERS)
        die_in_kernel("barrier %d: there are %d", id, BARRIERS);
    barrier_state &barrier = block.barrier[id];
    expected = expected ? expected : block.threads;
    if (barrier.waiting.empty()) {
        barrier.expected = expected;
        barrier.yes = 0;
    } else if (barrier.expected != expected) {
        die_in_kernel("barrier %d for %d and for %d threads", id, barrier.expected, expected);
    }
    lane_state &self = block.thread[block.current];
    barrier.yes += yes;
    self.at = place::barrier;
    self.barrier = id;
    barrier.waiting.push_back(block.current);
    if (static_cast<int>(barrier.waiting.size()) == expected) {
        for (int thread : barrier.waiting)
            block.thread[thread].value = static_cast<uint64_t>(barrier.yes);
        wake(barrier.waiting.data(), expected);
        barrier.waiting.clear();
    }
    wait_here();
}

/* All lanes of the mask are here: every one gets its value. */
void finish_warp_call(int warp, unsigned mask, place at)
{
    lane_state *lanes = &block.thread[warp * WARP];
    uint64_t given[WARP];
    unsigned yes = 0;
    int waiting[WARP], n = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        if (lanes[l].mask != mask || lanes[l].at != at)
            die_in_kernel("lane %d of warp %d %s with mask 0x%08x, lane %d %s with mask 0x%08x", l,
                          warp, place_name[static_cast<int>(lanes[l].at)], lanes[l].mask,
                          block.current % WARP, place_name[static_cast<int>(at)], mask);
        given[l] = lanes[l].value;
        yes |= (lanes[l].value ? 1u : 0u) << l;
        waiting[n++] = warp * WARP + l;
    }
    for (int i = 0; i < n; i++) {
        lane_state &lane = block.thread[waiting[i]];
        if (at == place::vote)
            lane.value = yes;
        else if (lane.gathered)
            std::copy(given, given + WARP, lane.gathered);
        else if (at == place::shuffle) /* from a lane outside of the mask: not defined, so NaN */
            lane.value = lane.source >= 0 && lane.source < WARP && mask >> lane.source & 1
                             ? given[lane.source]
                             : UINT64_MAX;
    }
    block.arrived[warp] &= ~mask;
    wake(waiting, n);
}

uint64_t warp_call(place at, unsigned mask, uint64_t value, int source, uint64_t *gathered)
{
    const int warp = block.current / WARP, lane = block.current % WARP;
    lane_state &self = block.thread[block.current];
    if (!(mask >> lane & 1))
        die_in_kernel("lane %d of warp %d is not in its own mask 0x%08x", lane, warp, mask);
    self.at = at;
    self.mask = mask;
    self.value = value;
    self.source = source;
    self.gathered = gathered;
    block.arrived[warp] |= 1u << lane;
    if ((block.arrived[warp] & mask) == mask)
        finish_warp_call(warp, mask, at);
    wait_here();
    return self.value;
}

} // namespace

void emulate_barrier(int id, int threads)
{
    arrive(id, threads, false);
}

int emulate_barrier_count(bool predicate)
{
    arrive(0, 0, predicate);
    return static_cast<int>(block.thread[block.current].value);
}

void emulate_warp_sync(unsigned mask)
{
    warp_call(place::sync_warp, mask, 0, 0, nullptr);
}

unsigned emulate_ballot(unsigned mask, bool predicate)
{
    return static_cast<unsigned>(warp_call(place::vote, mask, predicate, 0, nullptr));
}

uint64_t emulate_exchange(unsigned mask, uint64_t value, int source)
{
    return warp_call(place::shuffle, mask, value, source, nullptr);
}

void emulate_gather(unsigned mask, uint64_t value, uint64_t gathered[32])
{
    warp_call(place::shuffle, mask, value, 0, gathered);
}

int emulate_lane()
{
    return block.current % WARP;
}

void *emulate_shared_memory()
{
    return block.shared + RED_ZONE;
}

namespace
{

void choose_order(emulate_order order)
{
    for (int i = 0; i < block.threads; i++)
        block.order[i] = i;
    if (order == emulate_order::backward)
        std::reverse(block.order, block.order + block.threads);
    block.prefer_ready = block.newest_ready = false;
    if (order != emulate_order::random)
        return;
    const uint64_t choice = emulate_random();
    block.prefer_ready = choice & 1;
    block.newest_ready = choice & 2;
    if ((choice >> 2) % 4 == 0)
        std::reverse(block.order, block.order + block.threads);
    else if ((choice >> 2) % 4 >= 2)
        for (int i = block.threads - 1; i > 0; i--)
            std::swap(block.order[i],
                      block.order[emulate_random_below(static_cast<size_t>(i) + 1)]);
}

void prepare_threads(dim3 size)
{
    int t = 0;
    for (unsigned z = 0; z < size.z; z++)
        for (unsigned y = 0; y < size.y; y++)
            for (unsigned x = 0; x < size.x; x++)
                block.thread[t++].index = make_uint3(x, y, z);
}

} // namespace

void emulate_block_run()
{
    const size_t shared_bytes = block.launch->shared_bytes;
    memset(block.shared, 0xff, shared_bytes + 2 * RED_ZONE);
    block.started = block.gone = 0;
    block.ready_first = block.ready_count = 0;
    for (int t = 0; t < block.threads; t++)
        block.thread[t].at = place::fresh;
    block.fiber = block.caller;
    give_way();
    if (!emulate_is_poison(block.shared, RED_ZONE) ||
        !emulate_is_poison(block.shared + RED_ZONE + shared_bytes, RED_ZONE))
        die_in_kernel("dynamic shared memory (%zu bytes) is written to out of bounds",
                      shared_bytes);
}

void emulate_block_prepare(const emulate_launch &launch, const std::function<void()> &body)
{
    block.launch = &launch;
    block.body = &body;
    block.threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    blockDim = launch.block;
    gridDim = launch.grid;
    if (!block.caller)
        block.caller = emulate_fiber_of_caller();
    if (launch.shared_bytes > block.shared_capacity || !block.shared) {
        free(block.shared);
        block.shared_capacity = launch.shared_bytes;
        block.shared = static_cast<unsigned char *>(
            aligned_alloc(256, (launch.shared_bytes + 2 * RED_ZONE + 255) / 256 * 256));
        if (!block.shared)
            emulate_die("no memory for %zu bytes of shared memory", launch.shared_bytes);
    }
    prepare_threads(launch.block);
    choose_order(emulate_setting().order);
}

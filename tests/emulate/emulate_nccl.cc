/* NCCL over MPI, for emulated GPUs. As in NCCL:
 *  - the operations of a communicator are carried out one after another in the order in which they
 *    were issued, whatever their streams; those of one group together;
 *  - a send is done when its receive has taken it, never earlier;
 *  - groups belong to the thread that begins them. The end of one waits for other ranks where
 *    communicators are made or finalized, or two ranks connect, which they do when they first send
 *    to each other; with more than one such communicator it starts a thread for each;
 *  - another thread may abort a communicator meanwhile: the wait ends with an error. The end of the
 *    group of who aborts frees the communicator, and waits until the device is idle: what waits for
 *    a communicator that is not aborted in the same group hangs.
 *
 * Stricter than NCCL: communicators block, since NCCL starts a thread for every group of one that
 * does not; sizes that do not match abort, and so do communicators destroyed that were not
 * finalized, used or freed while a call of another thread waits, and the program's first thread
 * where it would wait for other ranks: nobody watches it.
 *
 * Messages go through host memory, since MPI may move them when device memory is out of reach, and
 * through MPI_COMM_WORLD, with tags of the communicator, by any thread: MPI is asked for that. The
 * rank that made the id must be one of it.
 *
 * SMP_EMULATE_NCCL_FAIL=N: the Nth operation of this process fails as emulate_nccl_fail says.
 * SMP_EMULATE_NCCL_INIT=error|stuck|hang|kill: what becomes of this process's first communicator:
 * making it fails, or never returns; the process stands still, or is killed.
 * SMP_EMULATE_NCCL_VERSION=N: another version, such as 22304. */
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <unistd.h>

#include "emulate.h"
#include "emulate_state.h"
#include "nccl.h"

namespace
{

/* The tag of a communicator is TAG_FIRST + TAGS * (root * NUMBERS + number) + what it is for. */
enum { TAG_FIRST = 1 << 16, NUMBERS = 4096, TAGS = 5 };
enum { TAG_SELF, TAG_MEMBERS, TAG_HEADER, TAG_DATA, TAG_CONNECT };

struct state {
    int tag = 0;
    int ranks = 0, rank = 0;
    std::vector<int> member;      /* by rank: that of MPI_COMM_WORLD */
    long issued = 0, carried = 0; /* groups of operations */
    bool aborted = false, finalized = false;
    ncclResult_t error = ncclSuccess;
    int waiting = 0;                             /* calls */
    std::map<int, bool> sends_to, receives_from; /* connected peers */
};

enum class kind { SEND, RECEIVE };

struct operation {
    kind what;
    const void *source;
    void *target;
    size_t bytes;
    int peer;
    /* while it is carried out: */
    int phase = 0; /* 0: not begun, then header, data, 3: done */
    unsigned long long header = 0, others = 0;
    std::vector<char> host;
    MPI_Request request[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

struct pending_init {
    std::shared_ptr<state> comm;
    ncclUniqueId id;
};

struct pending_operation {
    std::shared_ptr<state> comm;
    cudaStream_t stream;
    operation op;
};

struct unique_id {
    int root, number;
};

/* What the end of a group waits for. */
struct job {
    std::shared_ptr<state> comm;
    std::function<bool()> done;
};

/* Of the group that is open. */
thread_local int depth;
thread_local std::vector<pending_init> inits;
thread_local std::vector<pending_operation> issued;
thread_local std::vector<std::shared_ptr<state>> finals;
thread_local std::vector<ncclComm_t> aborts;
/* What follows, and communicators, under the emulator's lock. */
long until_failure = -1; /* operations; -1: never */
long unaligned, made, threads;
long beside; /* kernels */

bool tested(operation &op, int i)
{
    int flag = 0;
    MPI_Test(&op.request[i], &flag, MPI_STATUS_IGNORE);
    return flag;
}

void begin(const state &comm, operation &op)
{
    op.header = op.bytes;
    op.phase = 1;
    switch (op.what) {
    case kind::SEND:
        op.host.assign((const char *)op.source, (const char *)op.source + op.bytes);
        MPI_Isend(&op.header, 8, MPI_BYTE, comm.member[op.peer], comm.tag + TAG_HEADER,
                  MPI_COMM_WORLD, &op.request[0]);
        MPI_Issend(op.host.data(), (int)op.bytes, MPI_BYTE, comm.member[op.peer],
                   comm.tag + TAG_DATA, MPI_COMM_WORLD, &op.request[1]);
        break;
    case kind::RECEIVE:
        MPI_Irecv(&op.others, 8, MPI_BYTE, comm.member[op.peer], comm.tag + TAG_HEADER,
                  MPI_COMM_WORLD, &op.request[0]);
        break;
    }
}

/* Headers are there: do they match? */
void begin_data(const state &comm, operation &op)
{
    op.phase = 2;
    if (op.what == kind::RECEIVE) {
        if (op.others != op.header)
            emulate_die("ncclRecv of %llu bytes meets ncclSend of %llu", op.header, op.others);
        op.host.resize(op.bytes);
        MPI_Irecv(op.host.data(), (int)op.bytes, MPI_BYTE, comm.member[op.peer],
                  comm.tag + TAG_DATA, MPI_COMM_WORLD, &op.request[1]);
    }
}

void end(operation &op)
{
    op.phase = 3;
    if (op.what == kind::RECEIVE)
        std::memcpy(op.target, op.host.data(), op.bytes);
}

bool carry_out(const state &comm, operation &op)
{
    if (op.phase == 0)
        begin(comm, op);
    if (op.phase == 1 && tested(op, 0))
        begin_data(comm, op);
    if (op.phase == 2 && tested(op, 1))
        end(op);
    return op.phase == 3;
}

/* The operations that one communicator gets in one group, as one item of a stream. */
void enqueue(const std::shared_ptr<state> &comm, cudaStream_t stream, std::vector<operation> group)
{
    emulate_call call(false);
    static const char *environment = std::getenv("SMP_EMULATE_NCCL_FAIL");
    if (environment)
        until_failure = std::atol(environment) - 1;
    environment = nullptr;
    bool fails = false;
    for (size_t i = 0; i < group.size(); i++)
        fails |= until_failure >= 0 && until_failure-- == 0;
    auto ops = std::make_shared<std::vector<operation>>(std::move(group));
    long number = comm->issued++;
    if (emulate_is_captured(stream))
        emulate_die("a message is captured: its state would be that of one launch");
    emulate_waiting_for_others++;
    emulate_enqueue(stream, [comm, ops, number, fails, kernels = -1L]() mutable {
        if (comm->aborted) {
            static auto *kept = new std::vector<decltype(ops)>; /* MPI may still write to them */
            kept->push_back(ops);
            emulate_waiting_for_others--;
            return true;
        }
        if (comm->carried != number)
            return false;
        if (fails) {
            comm->error = ncclRemoteError;
            return false;
        }
        if (kernels < 0)
            kernels = emulate_kernels_run();
        bool done = true;
        for (operation &op : *ops)
            done &= carry_out(*comm, op);
        comm->carried += done;
        beside += done ? emulate_kernels_run() - kernels : 0;
        emulate_waiting_for_others -= done;
        return done;
    });
}

} // namespace

struct ncclComm {
    std::shared_ptr<state> is;
};

namespace
{

/* Once per process: what SMP_EMULATE_NCCL_INIT says. */
ncclResult_t init_fault()
{
    const char *fault = std::getenv("SMP_EMULATE_NCCL_INIT");
    static bool over;
    if (over || !fault)
        return ncclSuccess;
    over = true;
    if (std::strcmp(fault, "stuck") == 0)
        for (;;)
            pause();
    if (std::strcmp(fault, "hang") == 0)
        std::raise(SIGSTOP);
    if (std::strcmp(fault, "kill") == 0)
        std::raise(SIGKILL);
    return ncclSystemError;
}

bool all_done(std::vector<MPI_Request> &requests)
{
    int done = 0;
    MPI_Testall((int)requests.size(), requests.data(), &done, MPI_STATUSES_IGNORE);
    return done;
}

/* Of a communicator that is being made; MPI may use it as long as the process lives. */
struct introduction {
    std::vector<MPI_Request> requests;
    std::vector<int> others; /* rank and world rank of each */
    bool told = false;
};

/* Ranks tell the root who they are, it tells them who the others are. Returns when all are told. */
std::function<bool()> init(const pending_init &pending)
{
    std::shared_ptr<state> comm = pending.comm;
    unique_id id;
    int world;
    std::memcpy(&id, &pending.id, sizeof id);
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    comm->tag = TAG_FIRST + TAGS * (id.root * NUMBERS + id.number);
    comm->member.assign(comm->ranks, -1);
    auto *in = new introduction;
    if (world != id.root) {
        in->others = {comm->rank, world};
        in->requests.resize(2);
        MPI_Isend(in->others.data(), 2, MPI_INT, id.root, comm->tag + TAG_SELF, MPI_COMM_WORLD,
                  &in->requests[0]);
        MPI_Irecv(comm->member.data(), comm->ranks, MPI_INT, id.root, comm->tag + TAG_MEMBERS,
                  MPI_COMM_WORLD, &in->requests[1]);
        return [in] { return all_done(in->requests); };
    }
    comm->member[comm->rank] = world;
    in->others.resize(2 * (comm->ranks - 1));
    in->requests.resize(comm->ranks - 1);
    for (int i = 0; i < comm->ranks - 1; i++)
        MPI_Irecv(&in->others[2 * i], 2, MPI_INT, MPI_ANY_SOURCE, comm->tag + TAG_SELF,
                  MPI_COMM_WORLD, &in->requests[i]);
    state *of = comm.get();
    return [in, of] {
        if (!all_done(in->requests) || in->told)
            return in->told;
        for (size_t i = 0; i < in->requests.size(); i++) {
            const int rank = in->others[2 * i];
            if (rank < 0 || rank >= of->ranks || of->member[rank] >= 0)
                emulate_die("rank %d twice in one NCCL communicator of %d", rank, of->ranks);
            of->member[rank] = in->others[2 * i + 1];
        }
        for (size_t i = 0; i < in->requests.size(); i++)
            MPI_Isend(of->member.data(), of->ranks, MPI_INT, in->others[2 * i + 1],
                      of->tag + TAG_MEMBERS, MPI_COMM_WORLD, &in->requests[i]);
        in->told = true;
        return all_done(in->requests);
    };
}

/* What connects this communicator with the peers of its first messages. */
std::vector<MPI_Request> connect(state &comm, const std::vector<operation> &group)
{
    static char byte;
    std::vector<MPI_Request> requests;
    for (const operation &op : group) {
        MPI_Request request;
        const int peer = comm.member[op.peer], tag = comm.tag + TAG_CONNECT;
        if (op.what == kind::SEND && !comm.sends_to[op.peer]) {
            MPI_Issend(&byte, 1, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request);
            requests.push_back(request);
            comm.sends_to[op.peer] = true;
        }
        if (op.what == kind::RECEIVE && !comm.receives_from[op.peer]) {
            MPI_Irecv(&byte, 1, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request);
            requests.push_back(request);
            comm.receives_from[op.peer] = true;
        }
    }
    return requests;
}

void require_alone(const state &comm, const char *what)
{
    if (comm.waiting > 0)
        emulate_die("%s while a call of its communicator waits in another thread", what);
}

ncclResult_t issue(kind what, const void *source, void *target, size_t bytes, int peer,
                   ncclComm_t comm, cudaStream_t stream)
{
    {
        emulate_call call(false);
        if (!comm || comm->is->aborted)
            return ncclInvalidArgument;
        if (peer < 0 || peer >= comm->is->ranks)
            return ncclInvalidArgument;
        if (comm->is->error != ncclSuccess)
            return comm->is->error;
        require_alone(*comm->is, what == kind::SEND ? "ncclSend" : "ncclRecv");
        unaligned += bytes >= 16 && reinterpret_cast<uintptr_t>(source ? source : target) % 16 > 0;
    }
    ncclGroupStart();
    operation op{};
    op.what = what;
    op.source = source;
    op.target = target;
    op.bytes = bytes;
    op.peer = peer;
    issued.push_back({comm->is, stream, op});
    return ncclGroupEnd();
}

/* What one communicator is told in a group. */
struct part {
    std::shared_ptr<state> comm;
    cudaStream_t stream;
    std::vector<operation> ops;
};

/* In the order of their first operation. */
std::vector<part> take_parts()
{
    std::vector<part> parts;
    for (pending_operation &p : issued) {
        size_t i = 0;
        while (i < parts.size() && parts[i].comm != p.comm)
            i++;
        if (i == parts.size())
            parts.push_back({p.comm, p.stream, {}});
        parts[i].ops.push_back(std::move(p.op));
    }
    issued.clear();
    return parts;
}

std::vector<job> begin_jobs(const std::vector<part> &parts)
{
    emulate_call call(false);
    std::vector<job> jobs;
    made += (long)inits.size();
    for (const pending_init &pending : inits)
        jobs.push_back({pending.comm, init(pending)});
    for (const std::shared_ptr<state> &comm : finals)
        jobs.push_back({comm, [comm] {
                            emulate_progress();
                            return comm->issued == comm->carried;
                        }});
    for (const part &p : parts) {
        auto requests = std::make_shared<std::vector<MPI_Request>>(connect(*p.comm, p.ops));
        if (!requests->empty())
            jobs.push_back({p.comm, [requests] { return all_done(*requests); }});
    }
    inits.clear();
    finals.clear();
    for (job &j : jobs)
        j.comm->waiting++;
    threads += jobs.size() > 1 ? (long)jobs.size() : 0;
    return jobs;
}

/* Are all done, or has one been aborted? */
bool is_over(std::vector<job> &jobs, ncclResult_t *result)
{
    emulate_call call(false);
    bool done = true;
    for (job &j : jobs) {
        if (j.comm->aborted)
            *result = ncclInternalError;
        done &= j.comm->aborted || j.done();
    }
    if (*result == ncclSuccess && !done)
        return false;
    for (job &j : jobs)
        j.comm->waiting--;
    return true;
}

ncclResult_t wait_for(std::vector<job> &&jobs)
{
    ncclResult_t result = ncclSuccess;
    int first_thread = 0;
    MPI_Is_thread_main(&first_thread);
    if (first_thread && !jobs.empty())
        emulate_die("a group waits for other ranks, and nobody watches");
    while (!is_over(jobs, &result))
        usleep(20);
    return result;
}

/* The communicators that are aborted, and all that stands on the device. */
void free_aborted()
{
    emulate_call call(false);
    for (ncclComm_t comm : aborts) {
        require_alone(*comm->is, "the end of ncclCommAbort");
        delete comm;
    }
    if (!aborts.empty())
        cudaDeviceSynchronize();
    aborts.clear();
}

size_t size_of(ncclDataType_t type)
{
    return type == ncclInt8 || type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : 4;
}

} // namespace

ncclResult_t ncclGetVersion(int *version)
{
    const char *given = std::getenv("SMP_EMULATE_NCCL_VERSION");
    *version = given ? std::atoi(given) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int numbers;
    unique_id own{};
    MPI_Comm_rank(MPI_COMM_WORLD, &own.root);
    own.number = numbers++ % NUMBERS;
    std::memset(id, 0, sizeof *id);
    std::memcpy(id, &own, sizeof own);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (!comm || ranks < 1 || rank < 0 || rank >= ranks ||
        (!config || config->magic != 0xcafebeef || config->size != sizeof *config))
        return ncclInvalidArgument;
    int level;
    MPI_Query_thread(&level);
    if (config->blocking != 1)
        emulate_die("a communicator that does not block: each of its groups starts a thread");
    if (level != MPI_THREAD_MULTIPLE)
        emulate_die("MPI that not all threads may call");
    ncclGroupStart();
    *comm = new ncclComm{std::make_shared<state>()};
    (*comm)->is->ranks = ranks;
    (*comm)->is->rank = rank;
    inits.push_back({(*comm)->is, id});
    return ncclGroupEnd();
}

/* Done when all that it was told has been carried out. */
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    {
        emulate_call call(false);
        require_alone(*comm->is, "ncclCommFinalize");
        comm->is->finalized = true;
    }
    ncclGroupStart();
    finals.push_back(comm->is);
    return ncclGroupEnd();
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    emulate_call call(false);
    require_alone(*comm->is, "ncclCommDestroy");
    if (!comm->is->finalized)
        emulate_die("ncclCommDestroy of a communicator that was not finalized");
    delete comm;
    return ncclSuccess;
}

/* What MPI still has of it stays where it is. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    static auto *kept = new std::vector<std::shared_ptr<state>>;
    emulate_call call(false);
    ncclGroupStart();
    kept->push_back(comm->is);
    comm->is->aborted = true;
    aborts.push_back(comm);
    return ncclGroupEnd();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    emulate_call call(false);
    emulate_progress();
    *error = comm->is->error;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
    return result < ncclNumResults ? text[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return issue(kind::SEND, data, nullptr, count * size_of(type), peer, comm, stream);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return issue(kind::RECEIVE, nullptr, data, count * size_of(type), peer, comm, stream);
}

void emulate_nccl_fail(long after)
{
    until_failure = after;
}

long emulate_nccl_made(void)
{
    return made;
}

long emulate_nccl_threads(void)
{
    return threads;
}

long emulate_nccl_unaligned(void)
{
    return unaligned;
}

long emulate_nccl_beside(void)
{
    return std::exchange(beside, 0);
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t fault;
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0)
        return ncclSuccess;
    if (!inits.empty() && (fault = init_fault()) != ncclSuccess) {
        inits.clear();
        return fault;
    }
    std::vector<part> parts = take_parts();
    const ncclResult_t result = wait_for(begin_jobs(parts));
    for (part &p : parts)
        if (result == ncclSuccess && !p.comm->aborted)
            enqueue(p.comm, p.stream, std::move(p.ops));
    free_aborted();
    return result;
}

/* In front of MPI's: NCCL's calls in other threads are calls of MPI here. */
int MPI_Init_thread(int *argc, char ***argv, int, int *provided)
{
    return PMPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, provided);
}

int MPI_Init(int *argc, char ***argv)
{
    int provided;
    return PMPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
}

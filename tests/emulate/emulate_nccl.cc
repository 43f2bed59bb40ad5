/* NCCL over MPI, for emulated GPUs. As in NCCL:
 *  - the operations of a communicator are carried out one after another in the order in which they
 *    were issued, whatever their streams; those of one group together;
 *  - a send is done when its receive has taken it, never earlier;
 *  - two ranks connect when they first send to each other, and the host waits for that in
 *    ncclGroupEnd: a program that has it happen where its peer does not follow hangs;
 *  - who aborts a communicator waits until the device is idle: what waits for a communicator that
 *    is not aborted in the same group hangs.
 *
 * Stricter than NCCL: sizes that do not match, and communicators destroyed with operations in
 * flight, abort.
 *
 * Messages go through host memory, since MPI may move them when device memory is out of reach.
 * Communicators are made of MPI_COMM_WORLD, by the rank that made the id and must be one of them.
 *
 * SMP_EMULATE_NCCL_FAIL=N: the Nth operation of this process fails as emulate_nccl_fail says. */
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "emulate.h"
#include "nccl.h"

namespace
{

enum { TAG_BOOT = 20000, TAG_HEADER = 1, TAG_DATA = 2, TAG_CONNECT = 3 };

struct state {
    MPI_Comm mpi = MPI_COMM_NULL;
    int ranks = 0, rank = 0;
    long issued = 0, carried = 0; /* groups of operations */
    bool aborted = false;
    ncclResult_t error = ncclSuccess;
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
    ncclComm_t comm;
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

int depth = 0;
bool aborting = false;   /* in the group that is open */
long until_failure = -1; /* operations; -1: never */
std::vector<pending_init> inits;
std::vector<pending_operation> issued;

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
        MPI_Isend(&op.header, 8, MPI_BYTE, op.peer, TAG_HEADER, comm.mpi, &op.request[0]);
        MPI_Issend(op.host.data(), (int)op.bytes, MPI_BYTE, op.peer, TAG_DATA, comm.mpi,
                   &op.request[1]);
        break;
    case kind::RECEIVE:
        MPI_Irecv(&op.others, 8, MPI_BYTE, op.peer, TAG_HEADER, comm.mpi, &op.request[0]);
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
        MPI_Irecv(op.host.data(), (int)op.bytes, MPI_BYTE, op.peer, TAG_DATA, comm.mpi,
                  &op.request[1]);
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
    static const char *environment = std::getenv("SMP_EMULATE_NCCL_FAIL");
    if (environment)
        until_failure = std::atol(environment) - 1;
    environment = nullptr;
    bool fails = false;
    for (size_t i = 0; i < group.size(); i++)
        fails |= until_failure >= 0 && until_failure-- == 0;
    auto ops = std::make_shared<std::vector<operation>>(std::move(group));
    long number = comm->issued++;
    emulate_enqueue(stream, [comm, ops, number, fails] {
        if (comm->aborted)
            return true;
        if (comm->carried != number)
            return false;
        if (fails) {
            comm->error = ncclRemoteError;
            return false;
        }
        bool done = true;
        for (operation &op : *ops)
            done &= carry_out(*comm, op);
        comm->carried += done;
        return done;
    });
}

} // namespace

struct ncclComm {
    std::shared_ptr<state> is;
};

namespace
{

/* Ranks tell the root who they are, it tells them who the others are; then they make a
 * communicator. */
void init(const pending_init &pending)
{
    state &comm = *pending.comm->is;
    unique_id id;
    int world, size, tag_bound = TAG_BOOT;
    std::memcpy(&id, &pending.id, sizeof id);
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int tag = tag_bound + id.number;
    std::vector<int> member(comm.ranks, -1);
    if (world != id.root) {
        int self[2] = {comm.rank, world};
        MPI_Send(self, 2, MPI_INT, id.root, tag, MPI_COMM_WORLD);
        MPI_Recv(member.data(), comm.ranks, MPI_INT, id.root, tag, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    } else {
        member[comm.rank] = world;
        for (int i = 1; i < comm.ranks; i++) {
            int other[2];
            MPI_Recv(other, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (other[0] < 0 || other[0] >= comm.ranks || member[other[0]] >= 0)
                emulate_die("rank %d twice in one NCCL communicator of %d", other[0], comm.ranks);
            member[other[0]] = other[1];
        }
        for (int rank = 0; rank < comm.ranks; rank++)
            if (rank != comm.rank)
                MPI_Send(member.data(), comm.ranks, MPI_INT, member[rank], tag, MPI_COMM_WORLD);
    }
    MPI_Group all, group;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, comm.ranks, member.data(), &group);
    MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &comm.mpi);
    MPI_Group_free(&group);
    MPI_Group_free(&all);
}

/* The host waits until the peers of its first messages come to theirs. */
void connect()
{
    static char byte;
    std::vector<MPI_Request> requests;
    for (pending_operation &p : issued) {
        const operation &op = p.op;
        MPI_Request request;
        if (op.what == kind::SEND && !p.comm->sends_to[op.peer]) {
            MPI_Issend(&byte, 1, MPI_BYTE, op.peer, TAG_CONNECT, p.comm->mpi, &request);
            requests.push_back(request);
            p.comm->sends_to[op.peer] = true;
        }
        if (op.what == kind::RECEIVE && !p.comm->receives_from[op.peer]) {
            MPI_Irecv(&byte, 1, MPI_BYTE, op.peer, TAG_CONNECT, p.comm->mpi, &request);
            requests.push_back(request);
            p.comm->receives_from[op.peer] = true;
        }
    }
    MPI_Waitall((int)requests.size(), requests.data(), MPI_STATUSES_IGNORE);
}

ncclResult_t issue(kind what, const void *source, void *target, size_t bytes, int peer,
                   ncclComm_t comm, cudaStream_t stream)
{
    if (!comm || comm->is->aborted)
        return ncclInvalidArgument;
    if (peer < 0 || peer >= comm->is->ranks)
        return ncclInvalidArgument;
    if (comm->is->error != ncclSuccess)
        return comm->is->error;
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

size_t size_of(ncclDataType_t type)
{
    return type == ncclInt8 || type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : 4;
}

} // namespace

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int numbers;
    unique_id own{};
    MPI_Comm_rank(MPI_COMM_WORLD, &own.root);
    own.number = numbers++ % 8192;
    std::memset(id, 0, sizeof *id);
    std::memcpy(id, &own, sizeof own);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (!comm || ranks < 1 || rank < 0 || rank >= ranks ||
        (config && (config->magic != 0xcafebeef || config->size != sizeof *config)))
        return ncclInvalidArgument;
    ncclGroupStart();
    *comm = new ncclComm{std::make_shared<state>()};
    (*comm)->is->ranks = ranks;
    (*comm)->is->rank = rank;
    inits.push_back({*comm, id});
    return ncclGroupEnd();
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->is->issued != comm->is->carried)
        emulate_die("ncclCommDestroy with %ld operations in flight",
                    comm->is->issued - comm->is->carried);
    MPI_Comm_free(&comm->is->mpi);
    delete comm;
    return ncclSuccess;
}

/* What MPI still has of it stays where it is. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    ncclGroupStart();
    comm->is->aborted = aborting = true;
    delete comm;
    return ncclGroupEnd();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
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

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0)
        return ncclSuccess;
    for (const pending_init &pending : inits)
        init(pending);
    inits.clear();
    connect();
    std::vector<pending_operation> group;
    group.swap(issued);
    while (
        !group.empty()) { /* communicator by communicator, in the order of their first operation */
        std::shared_ptr<state> comm = group.front().comm;
        cudaStream_t stream = group.front().stream;
        std::vector<operation> own;
        std::vector<pending_operation> rest;
        for (pending_operation &p : group)
            if (p.comm == comm)
                own.push_back(std::move(p.op));
            else
                rest.push_back(std::move(p));
        enqueue(comm, stream, std::move(own));
        group = std::move(rest);
    }
    if (aborting)
        cudaDeviceSynchronize();
    aborting = false;
    return ncclSuccess;
}

/* States kept in the memory of several machines: four ranks, said to be on one to four of them,
 * each with a folder of its own. Whatever machine is lost, the others have what is gone on from,
 * under any plan, on any machines, with the bits of a run that nothing happened to. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "exec/checkpoint/checkpoint_copy.h"
#include "exec/checkpoint/kept_folder.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/save/keep_state.h"
#include "exec/save/kept_parts.h"
#include "tests/mpi/ranks.h"

enum { RANKS = 4, SAMPLES = 4, FEATURES = 160, MACHINES = 6, STEPS = 12 };

/* Weights of more than one piece, and of one; statistics that no optimizer changes. */
static const char model[] = "smp: 1\n"
                            "name: kept\n"
                            "inputs:\n"
                            "  x: {dtype: float32, shape: [4, 40]}\n"
                            "  wanted: {dtype: float32, shape: [160]}\n"
                            "ops:\n"
                            "  - {op: batchnorm, name: n, in: x, out: g0}\n"
                            "  - {op: flatten, name: f, in: g0, out: g0}\n"
                            "  - {op: linear, name: a, in: g0, out: h1, features: 160}\n"
                            "  - {op: relu, name: ra, in: h1, out: g1}\n"
                            "  - {op: linear, name: b, in: g1, out: h2, features: 160}\n"
                            "  - {op: relu, name: rb, in: h2, out: g2}\n"
                            "  - {op: linear, name: c, in: g2, out: h3, features: 160}\n"
                            "  - {op: relu, name: rc, in: h3, out: g3}\n"
                            "  - {op: linear, name: d, in: g3, out: y, features: 160}\n"
                            "  - {op: mse, name: loss, in: [y, wanted], out: loss}\n"
                            "loss: loss\n";

/* On which machine each rank is. */
static int machine[RANKS];

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out)
{
    int rank;
    (void)type;
    (void)info;
    MPI_Comm_rank(comm, &rank);
    return MPI_Comm_split(comm, machine[rank], key, out);
}

static bool is_full; /* the memory of machines */

int posix_fallocate(int file, off_t at, off_t bytes)
{
    if (is_full)
        return ENOSPC;
    return syscall(SYS_fallocate, file, 0, at, bytes) == 0 ? 0 : errno;
}

static char saved[96], kept[128];
/* Losses of steps, from 1, of jobs without and with groups of devices, which have other bits. */
static double expected[2][STEPS + 1];

static void put_on(const char *machines)
{
    for (int rank = 0; rank < RANKS; rank++)
        machine[rank] = machines[rank] - '0';
    snprintf(kept, sizeof kept, "%s/keep-%d", ranks_folder, machine[world_rank]);
}

/* By machine: what each has, as the plan of the job that ended says. */
static smp__kept_part parts_of[MACHINES];

/* By machine: [MACHINES], what the job's plan says; `out` is freed first. */
static void predict_parts(const smp *job, smp__kept_part *out)
{
    int number[MACHINES], of[RANKS], n = 0;
    smp__kept_part part[RANKS];
    for (int i = 0; i < MACHINES; i++)
        number[i] = -1;
    for (int rank = 0; rank < RANKS; rank++) {
        if (number[machine[rank]] < 0)
            number[machine[rank]] = n++;
        of[rank] = number[machine[rank]];
    }
    must(smp__kept_parts(job->plan, job->graph, smp__job_states(job), smp__job_keeps(job),
                         job->options->runtime.own_bytes, of, n, part));
    smp__kept_parts_free(out, MACHINES);
    for (int i = 0; i < MACHINES; i++)
        out[i] = number[i] < 0 ? (smp__kept_part){0} : part[number[i]];
}

/* What came to this machine is what the plans had said. */
static void check_fetched(const smp *job, const char *machines)
{
    smp__kept_part now[MACHINES] = {0};
    smp__spans lacks = {0};
    const struct smp__keep *k = smp__keep_of(job);
    predict_parts(job, now);
    must(smp__spans_without(&now[machine[world_rank]].reads, &parts_of[machine[world_rank]].keeps,
                            &lacks));
    if (smp__keep_is_first(job) && k->fetched != smp__spans_bytes(&lacks))
        fail_msg("on %s: %" PRId64 " bytes fetched, %" PRId64 " expected", machines, k->fetched,
                 smp__spans_bytes(&lacks));
    smp__spans_free(&lacks);
    smp__kept_parts_free(now, MACHINES);
}

typedef struct shape {
    int stages, ddp, shard, tensor;
} shape;
static const shape line = {4, 1, 1, 1}, replicas = {2, 2, 1, 1}, parts = {1, 4, 4, 1},
                   half_parts = {1, 4, 2, 1}, groups = {2, 1, 1, 2}, split_parts = {1, 2, 2, 2};

static int64_t own_state[3]; /* the step, and what ranks do not have alike */

static smp_options options_for(shape sh, int64_t every)
{
    smp_options options = options_of(model_file, (cut){sh.stages, sh.ddp, SAMPLES / sh.ddp, 1, 1});
    options.planning.shard = sh.shard;
    options.planning.gradient_blocks = SAMPLES;
    options.planning.tensor = sh.tensor;
    options.optimizer.name = "adamw";
    options.optimizer.lr = 0.01f;
    options.runtime.keep_every = every;
    options.runtime.keep_in = kept;
    options.runtime.own_state = own_state;
    options.runtime.own_bytes = sizeof own_state;
    return options;
}

static double step(smp *job)
{
    static float x[SAMPLES * FEATURES], wanted[SAMPLES * FEATURES];
    smp_step_result result;
    for (int i = 0; i < SAMPLES * FEATURES; i++) {
        x[i] = (float)((7 * i + (int)job->step) % 11) / 5.0f - 1.0f;
        wanted[i] = (float)(5 * i % 13) / 6.0f - 1.0f;
    }
    own_state[0] = job->step + 1;
    own_state[2] = world_rank;
    const int64_t first = smp_samples_before(job) * FEATURES;
    const void *inputs[] = {x + first, wanted + first};
    must(smp_step(job, inputs, &result));
    return result.loss;
}

static void remove_folder(const char *path)
{
    char name[512];
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        unlink(name);
    }
    if (folder)
        closedir(folder);
    rmdir(path);
}

static const char *folder_of(int number)
{
    static char path[2][128];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/keep-%d", ranks_folder, number);
    return path[turn];
}

/* The machine is gone, and its memory. */
static void lose(int number)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        remove_folder(folder_of(number));
    smp__kept_parts_free(&parts_of[number], 1);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void clean(void)
{
    for (int i = 0; i < MACHINES; i++)
        lose(i);
    if (world_rank == 0)
        remove_folder(saved);
    if (world_rank == 0)
        assert_int_equal(mkdir(saved, 0777), 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A name of a state, or what it has while it has none, to the other. */
static void unname(int number, int64_t step)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0) {
        smp__kept_folder *f;
        smp__kept_state here;
        must(smp__kept_peek(folder_of(number), &f));
        for (int place = 0; place < SMP__KEPT_PLACES; place++) {
            must(smp__kept_look(f, place, &here));
            if (here.step == step && here.named)
                must(smp__kept_unname(f, place));
            smp__kept_state_free(&here);
        }
        smp__kept_leave(f);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* How many states of a machine have a name. */
static int has_name(int number)
{
    int names = 0;
    DIR *folder;
    MPI_Barrier(MPI_COMM_WORLD);
    assert_non_null(folder = opendir(folder_of(number)));
    for (struct dirent *entry; (entry = readdir(folder));)
        names += strncmp(entry->d_name, "checkpoint-", strlen("checkpoint-")) == 0;
    closedir(folder);
    MPI_Barrier(MPI_COMM_WORLD);
    return names;
}

static smp *go_on(shape sh, const char *machines, int64_t from, bool memory)
{
    put_on(machines);
    smp_options options = options_for(sh, 1);
    smp *job = open_job(&options);
    own_state[0] = -1;
    must(smp_load(job, saved));
    assert_int_equal(own_state[0], job->step);
    assert_int_equal(own_state[2], 0); /* rank 0's */
    if (job->step != from && world_rank == 0)
        print_error("on %s: step %" PRId64 ": %s\n", machines, job->step, smp_load_note(job));
    assert_int_equal(job->step, from);
    assert_int_equal(smp__keep_was_loaded(job), memory);
    return job;
}

static void go(smp *job, int64_t last)
{
    while (job->step < last) {
        const int64_t at = job->step + 1;
        const double loss = step(job);
        const double wanted = expected[job->comm->tensor_size > 1][at];
        if (loss != wanted)
            fail_msg("step %" PRId64 ": %a, expected %a", at, loss, wanted);
    }
}

/* Steps from the beginning, one of which is saved on the disk; then it dies. */
static void live(shape sh, const char *machines, int64_t last, int64_t on_disk)
{
    clean();
    put_on(machines);
    smp_options options = options_for(sh, 1);
    smp *job = open_job(&options);
    for (int64_t s = 1; s <= last; s++) {
        go(job, s);
        if (s == on_disk)
            must(smp_save(job, saved));
    }
    predict_parts(job, parts_of);
    smp_finalize(job);
}

static void go_on_to(shape sh, const char *machines, int64_t from, int64_t last)
{
    smp *job = go_on(sh, machines, from, true);
    go(job, last);
    smp_finalize(job);
}

/* Of a run that nothing happens to, and that keeps nothing. */
static int run_undisturbed(void **state)
{
    (void)state;
    (void)model_path(model);
    snprintf(saved, sizeof saved, "%s/saved", ranks_folder);
    put_on("0000");
    for (int grouped = 0; grouped < 2; grouped++) {
        const smp_options options = options_for(grouped ? groups : line, 0);
        smp *job = open_job(&options);
        for (int s = 1; s <= STEPS; s++)
            expected[grouped][s] = step(job);
        smp_finalize(job);
        assert_true(expected[grouped][STEPS] != expected[grouped][STEPS - 1]);
    }
    if (world_rank == 0)
        assert_int_equal(mkdir(saved, 0777), 0);
    MPI_Barrier(MPI_COMM_WORLD);
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    clean();
    if (world_rank == 0)
        assert_int_equal(rmdir(saved), 0);
    return 0;
}

/* One of two machines goes, then, of those that went on, the one that was there at first. */
static void test_machine_lost(void **state)
{
    (void)state;
    static const struct {
        shape before;
        const char *machines;
        shape after;
        const char *then;
    } lives[] = {{line, "0011", line, "0022"},          {line, "0011", replicas, "0000"},
                 {replicas, "0011", line, "0222"},      {replicas, "0101", parts, "0022"},
                 {parts, "0011", line, "0022"},         {half_parts, "0011", parts, "0202"},
                 {half_parts, "0101", line, "0000"},    {groups, "0011", groups, "0022"},
                 {groups, "0101", split_parts, "0022"}, {split_parts, "0011", split_parts, "0202"},
                 {split_parts, "0101", groups, "0222"}, {line, "0123", line, "0223"}};
    const size_t n = sizeof lives / sizeof lives[0];
    for (size_t i = 0; i < n; i++) {
        live(lives[i].before, lives[i].machines, 4, 1);
        lose(1);
        smp *job = go_on(lives[i].after, lives[i].then, 4, true);
        check_fetched(job, lives[i].then);
        go(job, 6);
        predict_parts(job, parts_of);
        smp_finalize(job);
        if (strchr(lives[i].then, '2') && strchr(lives[i].then, '0')) {
            lose(0);
            job = go_on(lives[i].after, "3322", 6, true);
            check_fetched(job, "3322");
            go(job, 8);
            smp_finalize(job);
        }
    }
    clean();
}

/* What both of two partners had is gone: the disk has the last that is whole. */
static void test_partners_lost(void **state)
{
    (void)state;
    live(line, "0123", 5, 2);
    lose(1);
    lose(2);
    smp *job = go_on(line, "0453", 2, false);
    go(job, 4);
    smp_finalize(job);
    lose(4); /* not its partner: all of it is there */
    go_on_to(line, "0053", 4, 5);
    clean();
}

/* A state that one machine has named is complete on all; that none has, is not known to be. */
static void test_named_on_one(void **state)
{
    (void)state;
    for (int without = 0; without < 3; without++) {
        live(line, "0011", 5, 1);
        if (without != 0)
            unname(0, 5);
        if (without != 1)
            unname(1, 5);
        if (without == 2)
            unname(0, 4);
        go_on_to(replicas, "0011", without == 2 ? 4 : 5, 8);
        lose(0);
        go_on_to(line, "2211", 8, 9);
    }
    clean();
}

/* Which machine has bytes of another: none does where each has a replica. */
static void test_what_is_lent(void **state)
{
    (void)state;
    static const struct {
        shape sh;
        const char *machines;
        bool lends, whole;
    } cases[] = {{replicas, "0011", false, true},   {replicas, "0101", true, true},
                 {line, "0000", false, true},       {line, "0123", true, false},
                 {half_parts, "0011", false, true}, {parts, "0011", true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        clean();
        put_on(cases[i].machines);
        const smp_options options = options_for(cases[i].sh, 1);
        smp *job = open_job(&options);
        const struct smp__keep *k = smp__keep_of(job);
        const int64_t bytes = smp__spans_bytes(&k->state.spans);
        predict_parts(job, parts_of);
        const smp__spans *said = &parts_of[machine[world_rank]].keeps;
        assert_int_equal(said->n, k->state.spans.n);
        assert_memory_equal(said->at, k->state.spans.at, (size_t)said->n * sizeof *said->at);
        int lends = k->lent > 0;
        MPI_Allreduce(MPI_IN_PLACE, &lends, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        if (lends != cases[i].lends || (bytes == k->state.bytes) != cases[i].whole)
            fail_msg("case %zu: %" PRId64 " of %" PRId64 " bytes, %" PRId64 " of another machine",
                     i, bytes, k->state.bytes, k->lent);
        smp_finalize(job);
    }
    clean();
}

/* One that was away has a state of the steps that others have passed since. */
static void test_stale_machine(void **state)
{
    (void)state;
    live(line, "0011", 5, 1);
    char away[160];
    snprintf(away, sizeof away, "%s/away", ranks_folder);
    if (world_rank == 0)
        assert_int_equal(rename(folder_of(1), away), 0);
    go_on_to(line, "0022", 5, 8);
    if (world_rank == 0)
        assert_int_equal(rename(away, folder_of(1)), 0);
    lose(2);
    go_on_to(line, "0011", 8, 9); /* 0 has all of it */
    lose(0);
    go_on_to(line, "1133", 9, 10); /* and 1 has, now */
    clean();
    /* ... or of later ones of a branch that was left, in a job that has saved nothing since */
    live(line, "0011", 7, 3);
    if (world_rank == 0)
        assert_int_equal(rename(folder_of(1), away), 0);
    lose(0);
    smp *job = go_on(line, "0022", 3, false);
    go(job, 5);
    smp_finalize(job);
    if (world_rank == 0)
        assert_int_equal(rename(away, folder_of(1)), 0);
    go_on_to(replicas, "0122", 5, 7);
    clean();
}

static void move(const char *from, const char *to)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        assert_int_equal(rename(from, to), 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Two that were away have states after a save that was only begun; others have saved under its
 * number since, at a later step, and are gone. */
static void test_save_only_begun(void **state)
{
    (void)state;
    char away[2][160], half[160];
    live(line, "0011", 2, 1);
    smp *job = go_on(line, "0011", 2, true);
    go(job, 3);
    must(smp_save_begin(job, saved));
    go(job, 6);
    smp_finalize(job);
    snprintf(half, sizeof half, "%s/checkpoint-0000000003.smp", saved);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        assert_int_equal(unlink(half), 0); /* as if the job had ended before */
    for (int i = 0; i < 2; i++) {
        snprintf(away[i], sizeof away[i], "%s/away-%d", ranks_folder, i);
        move(folder_of(i), away[i]);
    }
    job = go_on(line, "2233", 1, false);
    go(job, 8);
    must(smp_save(job, saved));
    go(job, 9);
    smp_finalize(job);
    lose(2);
    lose(3);
    for (int i = 0; i < 2; i++)
        move(away[i], folder_of(i));
    job = go_on(line, "0011", 8, false);
    go(job, 9);
    smp_finalize(job);
    clean();
}

/* Bytes of memory that the places of a machine take. */
static int64_t memory_of(int number)
{
    int64_t bytes = 0;
    for (int place = 0; place < SMP__KEPT_PLACES; place++) {
        char path[192];
        struct stat info;
        snprintf(path, sizeof path, "%s/place-%d", folder_of(number), place);
        assert_int_equal(stat(path, &info), 0);
        bytes += (int64_t)info.st_blocks * 512;
    }
    return bytes;
}

/* Memory that other plans and machines took is given back, once there are later states. */
static void test_memory(void **state)
{
    (void)state;
    live(line, "0000", 4, 1);
    const int64_t whole = memory_of(0);
    smp *job = go_on(line, "0123", 4, true);
    MPI_Barrier(MPI_COMM_WORLD);
    go(job, 8);
    MPI_Barrier(MPI_COMM_WORLD);
    const struct smp__keep *k = smp__keep_of(job);
    const int64_t own = smp__spans_bytes(&k->state.spans);
    if (memory_of(machine[world_rank]) > SMP__KEPT_PLACES * (own + 16 * 4096))
        fail_msg("%" PRId64 " bytes of memory for three places of %" PRId64,
                 memory_of(machine[world_rank]), own);
    assert_true(own < whole / 3);
    MPI_Barrier(MPI_COMM_WORLD);
    smp_finalize(job);
    clean();
}

/* What machines have, put together on the disk without a job: what no two of them have alone. */
static void test_copy(void **state)
{
    (void)state;
    live(line, "0123", 5, 2);
    lose(2);
    if (world_rank == 0) {
        smp__kept_state all[3 * SMP__KEPT_PLACES];
        smp__checkpoint_copy *copy;
        int chosen[3 * SMP__KEPT_PLACES], n = 0, n_chosen;
        for (int number = 0; number < 4; number++) {
            smp__kept_state *states;
            int here;
            must(smp__kept_states(folder_of(number), &states, &here));
            for (int i = 0; i < here; i++)
                all[n++] = states[i];
            free(states);
        }
        must(smp__kept_choose(all, n, chosen, &n_chosen));
        assert_int_equal(n_chosen, 2);
        const smp__kept_state *last = &all[chosen[0]];
        assert_int_equal(last->step, 5);
        must(smp__checkpoint_copy_begin(saved, last->step, last->bytes, &copy));
        const int file = open(smp__checkpoint_copy_path(copy), O_WRONLY);
        assert_true(file >= 0);
        for (int number = 0; number < 4; number++) {
            int64_t bytes;
            must(smp__kept_put_ranges(folder_of(number), last->id, last->step, file, "the copy",
                                      NULL, &bytes));
            assert_int_equal(bytes > 0, number != 2); /* whose folder is gone */
        }
        close(file);
        must(smp__checkpoint_copy_end(copy, SMP_OK));
        for (int i = 0; i < n; i++)
            smp__kept_state_free(&all[i]);
    }
    for (int number = 0; number < 4; number++)
        lose(number);
    smp *job = go_on(replicas, "0011", 5, false);
    go(job, 7);
    smp_finalize(job);
    clean();
}

enum { IN_WEIGHT = 2000, IN_OWN_STATE = 20 }; /* bytes before the end of a state */

/* Changes a byte in what a machine has of a state. */
static void damage(int number, int64_t step, int place)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0) {
        char path[192], byte;
        snprintf(path, sizeof path, "%s/checkpoint-%010" PRId64 ".smp", folder_of(number), step);
        const int file = open(path, O_RDWR);
        assert_true(file >= 0);
        const off_t at = lseek(file, 0, SEEK_END) - place;
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
        assert_int_equal(close(file), 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What is damaged on one machine another has; what is on both is passed over. */
static void test_damage(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        live(line, "0011", 5, 1);
        damage(i % 2, 5, i < 2 ? IN_WEIGHT : IN_OWN_STATE);
        smp *job = go_on(replicas, "0011", 5, true);
        assert_true((smp_load_note(job)[0] == '\0') ||
                    strstr(smp_load_note(job), "is damaged; took another machine's copy"));
        go(job, 6);
        smp_finalize(job);
    }
    live(line, "0011", 5, 1);
    damage(0, 5, IN_WEIGHT);
    damage(1, 5, IN_WEIGHT);
    smp *job = go_on(line, "0011", 4, true);
    assert_non_null(strstr(smp_load_note(job), "is damaged; took the one before, "));
    go(job, 6);
    smp_finalize(job);
    clean();
}

/* All ranks learn that one machine has no room. */
static void test_no_room(void **state)
{
    (void)state;
    struct rlimit limit, small;
    smp *job = NULL;
    put_on("0011");
    const smp_options options = options_for(line, 1);
    getrlimit(RLIMIT_FSIZE, &limit);
    small = (struct rlimit){100000, limit.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    if (world_rank == 2)
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(smp_init(&job, &options), SMP_ERR_FAILED);
    if (!strstr(smp_last_error(), "rank 2") || !strstr(smp_last_error(), "keep-1"))
        fail_msg("'%s'", smp_last_error());
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    clean();
}

/* Where there is no room for what is to be fetched no machine gives up what it has. */
static void test_fetch_without_room(void **state)
{
    (void)state;
    live(line, "0123", 4, 0);
    put_on("0123");
    const smp_options options = options_for(parts, 1); /* each lacks something */
    smp *job = open_job(&options);
    is_full = true;
    assert_int_equal(smp_load(job, saved), SMP_ERR_INPUT);
    is_full = false;
    smp_finalize(job);
    go_on_to(parts, "0123", 4, 6);
    clean();
}

/* A job that has saved its last step leaves no memory behind on any machine, and a name that cannot
 * be given costs no state that has one. */
static void test_end(void **state)
{
    (void)state;
    live(line, "0011", 4, 4);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 2; i++)
        assert_int_equal(access(folder_of(i), F_OK), -1);
    clean();
    put_on("0011");
    smp_options options = options_for(line, 1);
    smp *job = open_job(&options);
    go(job, 3);
    char name[2][192];
    snprintf(name[0], sizeof name[0], "%s/free-2", folder_of(1)); /* of step 3 */
    snprintf(name[1], sizeof name[1], "%s/hidden", folder_of(1));
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 2)
        assert_int_equal(rename(name[0], name[1]), 0);
    MPI_Barrier(MPI_COMM_WORLD);
    go(job, 7);
    if (world_rank == 2)
        assert_non_null(strstr(smp__keep_note(job), "free-2: cannot name the state of step 3"));
    if (world_rank == 0)
        assert_non_null(strstr(smp__keep_note(job), "on another machine"));
    smp_finalize(job);
    go_on_to(line, "0022", 3, 5);
    clean();
}

/* All ranks learn that a machine that is not the first has a state. */
static void test_has_state(void **state)
{
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        live(line, "0011", 4, 1);
        lose(0);
        if (lost)
            lose(1);
        put_on("0011");
        const smp_options options = options_for(line, 1);
        smp *job = open_job(&options);
        bool has;
        must(smp__keep_has_state(job, &has));
        assert_int_equal(has, !lost);
        smp_finalize(job);
    }
    clean();
}

/* Another model's state: reported where rank 0 is, a leftover elsewhere. */
static void test_other_model(void **state)
{
    (void)state;
    for (int number = 0; number < 2; number++) {
        live(replicas, "0011", 4, 1);
        for (int place = 0; place < SMP__KEPT_PLACES && world_rank == 0; place++) {
            char path[192];
            snprintf(path, sizeof path, "%s/place-%d", folder_of(number), place);
            assert_int_equal(truncate(path, 4096), 0);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (number == 1) {
            go_on_to(replicas, "0011", 4, 6);
            continue;
        }
        smp *job = NULL;
        put_on("0011");
        const smp_options options = options_for(replicas, 1);
        assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
        assert_non_null(strstr(smp_last_error(), "another model"));
    }
    clean();
}

/* What is given up has messages under way: none of them is taken for one of a later state. */
static void test_discard(void **state)
{
    (void)state;
    clean();
    put_on("0011");
    const smp_options options = options_for(line, 1);
    smp *job = open_job(&options);
    go(job, 3);
    must(smp__keep_discard(job));
    for (int i = 0; i < 2; i++)
        assert_int_equal(has_name(i), 0);
    go(job, 7);
    smp_finalize(job);
    lose(1);
    go_on_to(line, "0022", 7, 9);
    clean();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_machine_lost),
                                       cmocka_unit_test(test_partners_lost),
                                       cmocka_unit_test(test_named_on_one),
                                       cmocka_unit_test(test_what_is_lent),
                                       cmocka_unit_test(test_stale_machine),
                                       cmocka_unit_test(test_save_only_begun),
                                       cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_copy),
                                       cmocka_unit_test(test_no_room),
                                       cmocka_unit_test(test_end),
                                       cmocka_unit_test(test_discard),
                                       cmocka_unit_test(test_has_state),
                                       cmocka_unit_test(test_other_model),
                                       cmocka_unit_test(test_fetch_without_room)};
    open_ranks(&argc, &argv);
    int failed = cmocka_run_group_tests(tests, run_undisturbed, remove_all);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        unlink(model_file);
    return close_ranks(failed);
}

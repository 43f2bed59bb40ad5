/* The options of smp-partition as a table: what --help and the parser share. */
#ifndef SMP_TOOLS_PARTITION_FLAGS_H
#define SMP_TOOLS_PARTITION_FLAGS_H

typedef enum smp__flag {
    FLAG_OUTPUT = 'o',
    FLAG_DEVICES = 'n',
    FLAG_HEADING = 255, /* a line of --help */
    FLAG_CLUSTER,
    FLAG_PROFILE,
    FLAG_DEVICE,
    FLAG_PRECISION,
    FLAG_STATE_PRECISION,
    FLAG_MODEL,
    FLAG_PLUGIN,
    FLAG_FIX,
    FLAG_CUT_AT,
    FLAG_SCHEDULE_FROM,
    FLAG_COSTS,
    FLAG_SAME_BITS_AS,
    FLAG_STAGES,
    FLAG_DDP,
    FLAG_TENSOR,
    FLAG_TENSOR_OVERLAP,
    FLAG_SPLIT,
    FLAG_SPLIT_FROM,
    FLAG_FREEZE,
    FLAG_SHARD,
    FLAG_SHARD_WHAT,
    FLAG_PREFETCH,
    FLAG_NODE_REPLICAS,
    FLAG_GRADIENT_WIRE,
    FLAG_BUCKET_BYTES,
    FLAG_CHUNKS,
    FLAG_MICROBATCHES,
    FLAG_MICROBATCH_SIZE,
    FLAG_GRADIENT_BLOCKS,
    FLAG_PIPELINE,
    FLAG_SCHEDULE,
    FLAG_ACTIVE,
    FLAG_WEIGHT_LAG,
    FLAG_GROUP,
    FLAG_OPTIMIZE,
    FLAG_OBJECTIVE,
    FLAG_PLACEMENT,
    FLAG_MEMORY,
    FLAG_RECOMPUTE,
    FLAG_OFFLOAD,
    FLAG_LOADING_HORIZON,
    FLAG_OFFLOAD_STATES,
    FLAG_PARTITIONER,
    FLAG_TIME_LIMIT,
    FLAG_SEED,
    FLAG_EXPLAIN,
    FLAG_JSON,
    FLAG_TRACE,
    FLAG_REPORT,
    FLAG_SVG,
    FLAG_EXPORT,
    FLAG_HELP,
    FLAG_VERSION
} smp__flag;

enum { IN_PLAN = 1, IN_CHECK = 2, IN_BOTH = 3 };

typedef struct smp__option_entry {
    int flag;
    const char *name;  /* without dashes; of one letter: a short option */
    const char *value; /* NULL: takes none; "a|b|c" of choices: in the order of their enumeration */
    unsigned commands;
    const char *help;
} smp__option_entry;

/* In the order of --help; ends with flag 0. */
extern const smp__option_entry smp__partition_entries[];

#endif

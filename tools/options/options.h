/* The options of a program: one table, from which the parser and --help are made. A row says what
 * an option is called, what it takes, what --help says of it and where its value goes. */
#ifndef SMP_TOOLS_OPTIONS_OPTIONS_H
#define SMP_TOOLS_OPTIONS_OPTIONS_H

#include <stddef.h>

#include "graph/base/text.h"
#include "graph/yaml/yaml.h"

typedef enum smp_option_kind {
    SMP_OPTION_HEADING, /* no option: a line of --help, the row's name */
    SMP_OPTION_YES,     /* takes nothing. bool: true */
    SMP_OPTION_NO,      /* takes nothing. bool: false */
    SMP_OPTION_ONE,     /* takes nothing. int: 1 */
    SMP_OPTION_TEXT,    /* const char *, of the command line */
    SMP_OPTION_FILE,    /* the same, not empty */
    SMP_OPTION_LIST,    /* may be repeated: smp_option_list */
    SMP_OPTION_CHOICE,  /* one of `value`'s words, "a|b|c". int: which, as enumerations count */
    SMP_OPTION_WORD,    /* likewise, but the word itself: const char *, of the command line */
    SMP_OPTION_INT,     /* int */
    SMP_OPTION_INT64,   /* int64_t */
    SMP_OPTION_SEED,    /* uint64_t */
    SMP_OPTION_FLOAT,   /* float */
    SMP_OPTION_SECONDS, /* seconds, or a time such as 90s, 10m or 1.5h: double */
    SMP_OPTION_BYTES,   /* a size such as 80GB: int64_t */
    SMP_OPTION_HELP,    /* nothing, man or bash. int: smp_option_help */
    SMP_OPTION_OWN      /* what the row's `set` makes of it */
} smp_option_kind;

/* Forms of --help: for people, as a page for man, as what bash is told to complete. */
typedef enum smp_option_help {
    SMP_HELP_NONE,
    SMP_HELP_TEXT,
    SMP_HELP_MAN,
    SMP_HELP_BASH
} smp_option_help;

enum { SMP_OPTION_LIST_MOST = 256 };
#define SMP_OPTION_NO_LIMIT 1e30 /* the most that a number may be */

typedef struct smp_option_list {
    const char *item[SMP_OPTION_LIST_MOST]; /* of the command line */
    int n;
} smp_option_list;

/* A word that may stand for a number. */
typedef struct smp_option_word {
    const char *word; /* NULL: the last */
    int64_t number;
} smp_option_word;

typedef struct smp_option smp_option;
struct smp_option {
    const char *name;  /* without dashes, of one letter: -n; NULL: after the last row */
    const char *alias; /* another name; NULL: none */
    smp_option_kind kind;
    const char *value;  /* what it takes, as --help calls it; NULL: nothing */
    const char *help;   /* with the default */
    size_t at;          /* where the value goes: offset in the program's options */
    size_t given;       /* offset of a bool that becomes true when the option is given; 0: none */
    double least, most; /* of numbers; most 0: 1e9 */
    bool above;         /* the least itself is too little */
    bool may_miss;      /* the value may be left out: a CHOICE then is its last word, OWN gets NULL;
                           other kinds always have one */
    unsigned flags;     /* the program's own */
    size_t
        base; /* of a joined table: where what `at`, `given` and `set` are of lies in the options */
    int part; /* likewise: of which table the row is */
    const smp_option_word *words;  /* of numbers; NULL: none */
    void (*names)(smp_text *text); /* appends to `help` what a registry has; NULL: nothing */
    /* OWN: reads `text` into the program's options. name: as it was given, "--name",
     * gone after the call. */
    smp_status (*set)(void *options, const char *name, const char *text);
};

/* What every program is asked: the first field of its options. */
typedef struct smp_common_options {
    const char *operand; /* the one argument that is no option; NULL with help or version */
    char *const *more;   /* [n_more] further ones, where the table allows several */
    int n_more;
    const char *config; /* a file of options; NULL: none */
    smp_yaml *file;     /* what was read of it: values point into it */
    int help;           /* smp_option_help */
    bool version;
} smp_common_options;

typedef struct smp_option_table {
    const char *program, *summary; /* what it is called, and is for, in a few words */
    const char *operand;           /* what the argument is, "smp-run PLAN" */
    bool several;                  /* arguments, at least one */
    const char *argument;          /* the key of a file of options that gives it, "plan" */
    const char *usage;             /* its forms, a line each */
    const char *about;             /* paragraphs of words; an empty line is between them */
    const char *exits;             /* what exit codes mean, and what else stands at the end */
    const smp_option *row;         /* --help and --version follow by themselves */
    /* May the option be given? SMP_ERR_INPUT with the reason. NULL: any may. */
    smp_status (*check)(const void *options, const smp_option *row, const char *name);
    /* Is told of every option that is given, in order. text: NULL where it takes nothing. */
    void (*told)(void *options, const smp_option *row, const char *text);
} smp_option_table;

/* One of the tables that another one is joined of. */
typedef struct smp_option_part {
    const smp_option *row;
    size_t base;                          /* where its options lie in the program's */
    bool (*takes)(const smp_option *row); /* is the row wanted? Not asked for headings. NULL: all */
} smp_option_part;

/* The rows of all parts in their order, but for those whose name a row before has, and for headings
 * of nothing. *rows is malloc'ed. */
smp_status smp_options_join(const smp_option_part *part, int n, smp_option **rows);

/* Reads argv[first] and what follows into options, which begin with smp_common_options. The
 * operand may stand anywhere; names may be shortened while they are clear. With --config FILE the
 * keys of a YAML map (`smp: 1`) are options, too, but for those that argv gives. SMP_ERR_INPUT with
 * the option. O(arguments * rows). */
smp_status smp_options_read(const smp_option_table *table, int argc, char **argv, int first,
                            void *options);
/* One option, as if it had been given. */
smp_status smp_options_set(const smp_option *row, const char *name, const char *text,
                           void *options);
/* What --help prints in a form. */
smp_status smp_options_help(const smp_option_table *table, smp_option_help form, smp_text *text);
/* Prints help or version to standard output if that is asked: *status says how that went. */
bool smp_options_answer(const smp_option_table *table, const void *options, smp_status *status);
/* Is this the process that prints what all ranks found: rank 0, or one without mpirun? */
bool smp_options_speaks(void);
/* The exit code; a failure is printed to standard error. */
int smp_options_end(const smp_option_table *table, smp_status status);
/* Frees what a file of options gave; values of options are gone with it. */
void smp_options_close(void *options);

/* --help and --version, after the rows of a table. NULL: after the last. */
const smp_option *smp__option_next(const smp_option *row);

/* "90s", "10m", "1.5h" in seconds; *unit false: a number without a unit, as it is. */
bool smp_parse_time(const char *text, double *seconds, bool *unit);
/* The number of the word of "a|b|c". SMP_ERR_INPUT: "name: got 'x', expected a, b or c". */
smp_status smp_parse_word(const char *name, const char *words, const char *text, int *out);

#endif

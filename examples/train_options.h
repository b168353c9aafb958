/* The command line of train. A value that is not understood ends the program with the accepted
 * ones. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

typedef struct train_options {
  /* local processes to start; 0: be one rank of the job that the environment describes */
  int ranks;
  int mixed; /* bf16 parameters and gradients, fp32 shards */
  int flat;  /* the flat layout instead of one cut per parameter */
  int epochs;
  const char* data_path;
  const char* losses_path; /* rank 0 writes one loss a line; NULL: no */
} train_options_t;

/* 0, or -1 after a message. */
int train_options_parse(int argc, char** argv, train_options_t* options);

#endif

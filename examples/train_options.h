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
  const char* losses_path;   /* rank 0 writes one loss a line; NULL: no */
  const char* held_out_path; /* the same for the test images */
  /* 0 .. : another one begins with other parameters, and takes the images in another order */
  int seed;
  int reversed; /* sums over the images of a batch in the reverse order */
  /* between hosts (docs/codecs.md): numbers of fsccl_codec_kind_t, and flags; 0: none */
  int gather_codec, reduce_codec;
  unsigned reduce_flags;
} train_options_t;

/* 0, or -1 after a message. */
int train_options_parse(int argc, char** argv, train_options_t* options);

#endif
